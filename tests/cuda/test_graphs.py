"""Steps that are recorded as CUDA graphs: what does not need a GPU."""

import pytest
import torch

from fewer.cuda import RecordedStep, graphs
from fewer.errors import FewerWarning

CPU = torch.device("cpu")


@pytest.fixture
def walk():
    """A random walk, one step at a time, from torch's generator and one of its own."""
    place, generator = torch.zeros(3), torch.Generator().manual_seed(0)

    def step():
        place.add_(torch.randn(3)).add_(torch.randn(3, generator=generator))

    return place, generator, step


def test_what_cannot_be_recorded_is_run_as_it_is(walk, monkeypatch):
    place, generator, step = walk
    torch.manual_seed(0)
    for _ in range(4):
        step()
    wanted = place.clone()

    def failing(step, warm_up, *_):
        warm_up()
        raise RuntimeError("operation not permitted\nmore about it")

    monkeypatch.setattr(graphs, "recorded", failing)
    place.zero_()
    generator.manual_seed(0)
    torch.manual_seed(0)
    recorded = RecordedStep(step, [place], CPU, [generator])
    with pytest.warns(
        FewerWarning, match=r"\(operation not permitted\); training continues without it"
    ):
        recorded()
    for _ in range(3):
        recorded()
    torch.testing.assert_close(place, wanted, rtol=0, atol=0)


def test_recording_leaves_state_and_random_numbers_as_they_were(walk, monkeypatch):
    place, generator, step = walk

    class Graph:
        replay = staticmethod(step)

    def fake(step, warm_up, *_):
        warm_up()
        step()
        return Graph()

    torch.manual_seed(0)
    step()
    wanted = place.clone()
    monkeypatch.setattr(graphs, "recorded", fake)
    place.zero_()
    generator.manual_seed(0)
    torch.manual_seed(0)
    recorded = RecordedStep(step, [place], CPU, [generator])
    recorded()
    torch.testing.assert_close(place, wanted, rtol=0, atol=0)
    assert recorded.first is None
    assert not recorded.state


def test_no_memory_is_not_hidden(walk, monkeypatch):
    place, generator, step = walk

    def short(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphs, "recorded", short)
    with pytest.raises(torch.OutOfMemoryError):
        RecordedStep(step, [place], CPU, [generator])()
