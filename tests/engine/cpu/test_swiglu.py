from __future__ import annotations

import pytest
import torch

from engine.cpu import swiglu as swiglu_module
from engine.cpu.swiglu import swiglu


@pytest.fixture(params=["kernels", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(swiglu_module, "_kernels", lambda: None)
    else:
        assert swiglu_module._kernels() is not None
    return request.param


@pytest.mark.parametrize("size", [1, 6, 16, 33, 1000])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_silu_of_the_first_half_times_the_second(rows: int, size: int, path: str) -> None:
    gate, up = (torch.randn(rows, size) * 6).double(), torch.randn(rows, size).double()
    y = swiglu(torch.cat((gate, up), dim=1).float())
    expected = gate.float().double() * gate.float().double().sigmoid() * up.float().double()
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_whatever_is_around_it(threads: int, path: str) -> None:
    """300 numbers are no multiple of what is computed at once, 192 rows no multiple of three shares."""
    x = torch.randn(200, 2 * 300)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = swiglu(x)
        for first, last in [(0, 1), (7, 8), (5, 133), (64, 128), (199, 200)]:
            assert torch.equal(swiglu(x[first:last].contiguous()), together[first:last])
    finally:
        torch.set_num_threads(before)


def test_large_gates_have_their_limits_and_what_is_no_number_stays_none(path: str) -> None:
    gate = torch.tensor([[-3e38, -1000.0, -100.0, 0.0, 100.0, 3e38, torch.nan, torch.inf]])
    y = swiglu(torch.cat((gate, torch.ones_like(gate)), dim=1))[0]
    assert y[:4].abs().max() < 1e-30
    assert y[4:6].tolist() == [100.0, torch.tensor(3e38).item()]
    assert y[6].isnan()
    assert y[7] == torch.inf
