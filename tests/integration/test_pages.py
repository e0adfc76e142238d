"""The examples in the documentation run as they stand, and print what the pages show."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import forked
from support.pages import complaints

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SKILL.md",
        *sorted(
            f"docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md")
        ),
    ],
)
def test_a_page_does_what_it_shows(page):
    """If this fails, a reader who copies an example gets an error or another output."""
    found = forked.call(complaints, page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("install", "how-to/install.md"),
        ("remove", "how-to/install.md"),
        ("HF Trainer", "how-to/frameworks.md"),
        ("vLLM", "how-to/serve-a-model.md"),
        ("CO2", "how-to/carbon-and-prices.md"),
        ("Slurm", "how-to/slurm.md"),
        ("torchrun", "tutorials/torchrun.md"),
        ("DeepSpeed", "how-to/run-pipelines.md"),
        ("fine-tuning", "how-to/predict.md"),
    ],
)
def test_a_heading_has_the_words_that_people_search_for(words, page):
    """The site's search, which weighs headings most, leads to the reference or nowhere."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert any(words.lower() in heading.lower() for heading in headings)


def test_differences_are_found(tmp_path):
    """If this fails, pages may show what no command prints."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n")
    command = [sys.executable, ROOT / "scripts" / "run_pages.py", page]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert "+42" in found.stderr
    subprocess.run([*command, "--update"], stderr=subprocess.PIPE, check=False)
    assert "```text\n42\n```" in page.read_text()


BENCHMARK = "python3 -c 'import sys; print(len(sys.argv[1:]) * 41, flush=True)'"


@pytest.mark.parametrize(
    ("options", "command", "printed"), [([], "", "0"), (["--quick"], " --quick", "41")]
)
def test_benchmarks_write_what_they_print(tmp_path, options, command, printed):
    """If this fails, figures on the benchmarks page are not those of the command beside them."""
    page = tmp_path / "page.md"
    unmarked = "```bash\nexit 1\n```\n"
    fails = "<!-- bench: as it stands -->\n```bash\necho 8; exit 1\n```\n\n```text\n7\n```\n"
    block = "<!-- bench -->\n```bash\n{}\n```\n\nIn words.\n\n```text\n{}\n```\n"
    page.write_text(unmarked + fails + block.format(f"{BENCHMARK} --quick", "old"))
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench.py", "--page", page, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert page.read_text() == unmarked + fails + block.format(BENCHMARK + command, printed)
    assert done.returncode == (0 if options else 1), done.stderr
    assert ("failed: echo 8; exit 1" in done.stderr) is not bool(options)


def test_the_site_builds():
    """If this fails, a page links to nothing or a docstring cannot be shown."""
    done = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
