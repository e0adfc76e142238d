"""Orders of pipeline schedules: complete, free of cycles, and as the papers draw them."""

import pytest

from joulery.errors import FileError, InvalidValueError, UsageError
from joulery.pipeline import (
    LETTERS,
    SCHEDULES,
    Instruction,
    Schedule,
    custom_schedule,
    dependencies,
    make_schedule,
    read_schedule,
)

_LETTER = {kind: letter for letter, kind in LETTERS.items()}


def _words(order: Schedule) -> list[str]:
    return [
        " ".join(f"{item.stage}{_LETTER[item.kind]}{item.microbatch}" for item in rank)
        for rank in order.ranks
    ]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_every_schedule_is_complete_and_ends(name, ranks, rounds):
    """A schedule by name would deadlock or lose a microbatch."""
    microbatches = ranks * rounds
    order = make_schedule(name, ranks, microbatches)
    edges = dependencies(order)
    chunks = 2 if name in ("interleaved", "zbv", "dualpipe-v") else 1
    assert (order.stages, order.microbatches, order.chunks) == (
        ranks * chunks,
        microbatches,
        chunks,
    )
    assert len(order.ranks) == ranks
    # Data crosses between stages in both directions; the turning point of a V is on one rank.
    on_one_rank = int(name in ("zbv", "dualpipe-v"))
    crossings = order.stages - 1 - on_one_rank if ranks > 1 else 0
    assert edges.crosses.sum() == 2 * microbatches * crossings


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "early-recompute", "zb-h1", "zbv"])
@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_fewer_microbatches_than_ranks(name, microbatches):
    """Short iterations would break orders that assume a full pipeline."""
    assert dependencies(make_schedule(name, 4, microbatches)).crosses.any()


def test_gpipe_order():
    """GPipe would no longer run all forwards first."""
    assert _words(make_schedule("gpipe", 2, 2)) == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]


def test_one_f_one_b_order():
    """1F1B would warm up wrongly, on the last rank above all."""
    assert _words(make_schedule("1f1b", 3, 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_recomputation_comes_ahead_of_backwards_but_not_on_the_last_rank():
    """Early recomputation would wait for the gradient, or recompute what is still there."""
    assert _words(make_schedule("early-recompute", 2, 2)) == [
        "0F0 0F1 0R0 0B0 0R1 0B1",
        "1F0 1B0 1F1 1B1",
    ]


def test_interleaved_order():
    """Chunks would be visited in another order than Megatron-LM's."""
    assert _words(make_schedule("interleaved", 2, 2, chunks=2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_zb_h1_weights_lag_by_the_rank():
    """ZB-H1 would leave its bubbles empty."""
    assert _words(make_schedule("zb-h1", 2, 3)) == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]


def test_unknown_schedule_names_the_known():
    """A typo would look like a missing file."""
    with pytest.raises(InvalidValueError, match=r"unknown schedule '1f1c' \(known are gpipe, 1f1b"):
        make_schedule("1f1c", 4, 8)


@pytest.mark.parametrize(("ranks", "microbatches"), [(0, 8), (4, 0), (-1, 8), (4, -3)])
def test_nothing_to_do_is_an_error(ranks, microbatches):
    """Zero microbatches or stages would plan an empty iteration."""
    with pytest.raises(InvalidValueError, match="positive whole"):
        make_schedule("1f1b", ranks, microbatches)


def test_too_much_to_plan_is_an_error():
    """A slip of the keyboard would fill the memory."""
    with pytest.raises(InvalidValueError, match="can be planned"):
        make_schedule("gpipe", 100_000, 100_000)


def test_what_is_planned_is_served_within_a_minute():
    """A slip of the keyboard would plan for hours without a word."""
    assert len(make_schedule("1f1b", 2, 25_000).instructions()) == 100_000
    for name, ranks, microbatches in (("1f1b", 2, 25_001), ("interleaved", 2, 20_000)):
        with pytest.raises(InvalidValueError, match="more than the 100,000"):
            make_schedule(name, ranks, microbatches)


def test_interleaving_needs_whole_rounds():
    """Odd microbatch counts would deadlock."""
    with pytest.raises(InvalidValueError, match="multiple of 4"):
        make_schedule("interleaved", 4, 9)


def test_dualpipe_needs_enough_microbatches():
    """Too few microbatches would give a broken order."""
    with pytest.raises(InvalidValueError, match="at least 8 microbatches"):
        make_schedule("dualpipe-v", 4, 7)


def test_own_order_equals_the_known_one():
    """Orders from lists would differ from the same order by name."""
    usual = make_schedule("1f1b", 2, 2)
    order = custom_schedule("1f1b", [words.split() for words in _words(usual)])
    assert order == usual


def test_waiting_steps_and_communication_are_passed_over():
    """Orders dumped by torch would not be read."""
    order = custom_schedule(
        "torch",
        [
            ["0F0", "0SEND_F0", "", "(0F1;0B0)OVERLAP_F_B", "0B1", "0REDUCE_GRAD"],
            [None, "1RECV_F0", "1F0", "1B0", "1F1", "1B1", "1UNSHARD", "1O"],
        ],
    )
    assert _words(order)[0] == "0F0 0F1 0B0 0B1"
    assert order.ranks[1][-1] == Instruction(1, 1, "optimizer", -1)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([["0F0"], ["1F0", "1B0"]], "lacks backward of microbatch 0 on stage 0"),
        ([["0B0"], ["1F0", "1B0"]], "lacks forward of microbatch 0 on stage 0"),
        ([["0F0", "0I0"], ["1F0", "1B0"]], "lacks backward_weight of microbatch 0 on stage 0"),
        ([["0F0", "0W0"], ["1F0", "1B0"]], "lacks backward_input of microbatch 0 on stage 0"),
        ([["0F0", "0I0", "0W0", "0B0"]], "both whole and in halves"),
        ([["0F0", "0B0"], ["2F0", "2B0"]], "lacks forward of microbatch 0 on stage 1"),
        ([["0F0", "0B0", "0F0"]], "holds forward of microbatch 0 on stage 0 twice"),
        ([["0F0", "1B0"], ["1F0", "0B0"]], "stage 1 is on rank 1|stage 1 is on rank 0"),
        ([["0B0", "0F0"]], "rank 0 runs backward of microbatch 0 on stage 0 before forward"),
        ([["0F0", "0W0", "0I0"]], "runs backward_weight of microbatch 0 on stage 0 before"),
        ([["0F0", "0O", "0B0"]], "rank 0 runs optimizer on stage 0 before backward"),
        (
            [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]],
            "rank 0 at backward of microbatch 0 on stage 0, rank 1 at forward of microbatch 1",
        ),
        ([], "the order is empty"),
        ([[]], "the order is empty"),
    ],
)
def test_orders_that_cannot_run(ranks, message):
    """A cyclic or incomplete order would hang the planner or give a wrong plan."""
    with pytest.raises(InvalidValueError, match=message):
        custom_schedule("mine", ranks)


@pytest.mark.parametrize("word", ["F0", "0X1", "0F", "0F1x", 7, ["0F0"], "0F-1", "0O1"])
def test_words_that_are_no_instruction(word):
    """A typo in an order would be passed over in silence."""
    with pytest.raises(FileError, match="no instruction"):
        custom_schedule("mine", [["0F0", word]])


@pytest.mark.parametrize(
    "text",
    [
        '[["0F0", "0B0"], ["1F0", "1B0"]]',
        "0F0,0B0\n1F0,1B0\n",
        "\ufeff0F0,,,0B0\n,1F0,1B0\n",
    ],
)
def test_orders_from_files(tmp_path, text):
    """A documented file format would not be read."""
    path = tmp_path / "mine.order"
    path.write_text(text, encoding="utf-8")
    assert _words(read_schedule(path)) == ["0F0 0B0", "1F0 1B0"]
    assert read_schedule(path).name == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "not valid JSON"),
        (b'{"ranks": 3}', "not a list per rank"),
        (b"\xff\xfe\x00", "not text"),
        (b"[" * 100_000, "not valid JSON"),
        (b'"' + b"0" * 200_000, "not valid CSV"),
        (b"0F0,0B0,0F999999999", "lacks forward of microbatch 1 on stage 0"),
    ],
)
def test_broken_files(tmp_path, content, message):
    """A broken file would show a traceback."""
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_schedule(path)


def test_missing_file(tmp_path):
    """A missing file would show a traceback."""
    with pytest.raises(FileError, match="cannot read the order"):
        read_schedule(tmp_path / "none")
