"""Captured steps: operators, counts and memory of models from PyTorch."""

import pytest

from joulery.errors import InvalidValueError
from joulery.prediction import predict
from support.torch_on_use import torch


def capture(*arguments, **options):
    """The function under test, which imports torch."""
    from joulery.prediction import capture

    return capture(*arguments, **options)


@pytest.fixture
def nn():
    """Layers of torch."""
    return torch.nn


def make_block(width, heads):
    """A small transformer block with causal attention."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x):
            """Attention with a residual."""
            batch, tokens, _ = x.shape
            parts = self.qkv(self.norm(x)).view(batch, tokens, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    return Block()


def test_a_linear_layer_is_three_products(nn):
    """Forward, gradient of the input, gradient of the weight; the first layer lacks the second."""
    graph = capture(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)), (torch.zeros(16, 64),))
    forward = 2.0 * 16 * (64 * 32 + 32 * 8)
    assert graph.operations == pytest.approx(3 * forward - 2.0 * 16 * 64 * 32)
    assert graph.parameters == 64 * 32 + 32 + 32 * 8 + 8
    assert graph.optimizer_bytes == 8 * graph.parameters


def test_attention_is_counted_on_a_cpu_build():
    """PyTorch's own counter misses it there."""
    graph = capture(lambda: make_block(64, 4), lambda: (torch.zeros(2, 128, 64),))
    fused = [operator for operator in graph.operators if operator.kind == "attention"]
    assert {operator.phase for operator in fused} == {"forward", "backward"}
    forward = next(operator for operator in fused if operator.phase == "forward")
    assert forward.operations == pytest.approx(2 * 2 * 4 * 128 * 128 * 16 * 2 * 0.5)


def test_attention_with_dropout_stays_fused(nn):
    """A CPU takes it apart in 32 bit, which would make it look ten times slower."""
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    graph = capture(layer, (torch.zeros(2, 128, 64),))
    assert any(operator.kind == "attention" for operator in graph.operators)
    assert not any(operator.name == "bmm" for operator in graph.operators)


def test_a_convolution_is_the_product_that_libraries_make_of_it(nn):
    """CNNs would be free otherwise."""
    layers = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4)
    )
    graph = capture(layers, (torch.zeros(2, 8, 10, 10),), optimizer="sgd")
    products = [
        operator
        for operator in graph.operators
        if operator.kind == "matmul" and operator.phase == "forward"
    ]
    assert products[0].shape == (1, 2 * 100, 16, 8 * 9)
    assert products[1].shape == (4, 2 * 64, 4, 4 * 9)


def test_recurrent_layers_show_their_products(nn):
    """OneDNN hides them in one operator unless it is turned off, and is turned on again."""
    before = torch.backends.mkldnn.enabled
    graph = capture(nn.LSTM(16, 32), (torch.zeros(5, 2, 16),), loss=lambda out: out[0].sum())
    assert graph.operations > 2.0 * 5 * 2 * 4 * 32 * (16 + 32)
    assert torch.backends.mkldnn.enabled == before


def test_embeddings_and_experts_are_captured(nn):
    """Recommenders and routed models are models too."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 32)
            self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
            self.gate = nn.Linear(32, 4)

        def forward(self, ids):
            x = self.embed(ids)
            weight = self.gate(x).softmax(-1)
            return sum(weight[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))

    graph = capture(Routed, lambda: (torch.zeros(8, 16, dtype=torch.long),))
    names = {operator.name for operator in graph.operators}
    assert {"embedding", "embedding_dense_backward"} <= names


def test_memory_follows_what_lives(nn):
    """Activations at the end of the forward pass, and a peak above them."""
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
    graph = capture(deep, (torch.zeros(512, 256),))
    activation_bytes = 512 * 256 * 4
    assert graph.activation_bytes == pytest.approx(4 * activation_bytes, rel=0.01)
    assert graph.peak_bytes > graph.parameter_bytes + graph.optimizer_bytes + 4 * activation_bytes


def test_a_captured_step_is_predicted():
    """Capture without prediction would be of no use."""
    graph = capture(
        lambda: make_block(1024, 16).bfloat16(),
        lambda: (torch.zeros(8, 1024, 1024, dtype=torch.bfloat16),),
    )
    assert predict(graph, "h100").fastest.seconds < predict(graph, "l40s").fastest.seconds


def test_operators_that_cannot_be_captured_are_named(nn):
    """The user must know which line of the model to change."""

    class Peeks(nn.Module):
        def forward(self, x):
            return x * float(x.sum())

    with pytest.raises(InvalidValueError, match="cannot capture"):
        capture(Peeks(), (torch.zeros(3, requires_grad=True),))
    with pytest.raises(InvalidValueError, match="optimizer"):
        capture(nn.Linear(1, 1), (torch.zeros(1),), optimizer="lion")


def test_inputs_in_any_form_are_the_same_step():
    """A tensor alone would be taken apart along its batch."""
    layer, tensor = torch.nn.Linear(8, 4), torch.zeros(3, 8)
    forms = [tensor, [tensor], {"input": tensor}, lambda: (tensor,)]
    assert len({capture(layer, form).operators for form in forms}) == 1


@pytest.mark.parametrize("model", ["a text", lambda: 3])
def test_what_is_no_module_is_refused(model):
    """The error must say what to give instead."""
    with pytest.raises(InvalidValueError, match=r"no torch\.nn\.Module"):
        capture(model, torch.zeros(1))


def test_grouped_products_of_experts_are_counted(nn):
    """A mixture of experts would be as cheap as its attention."""
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no grouped products")

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(4, 32, 16, dtype=torch.bfloat16))

        def forward(self, tokens):
            ends = torch.full((4,), 6, dtype=torch.int32).cumsum(0, dtype=torch.int32)
            return torch._grouped_mm(tokens, self.weight, ends)

    tokens = torch.zeros(24, 32, dtype=torch.bfloat16, requires_grad=True)
    products = [
        operator for operator in capture(Experts, tokens).operators if operator.kind == "matmul"
    ]
    forward = sum(
        operator.operations * operator.count for operator in products if operator.phase == "forward"
    )
    assert forward == 2 * 24 * 32 * 16
    assert sum(operator.operations * operator.count for operator in products) >= 2 * forward
