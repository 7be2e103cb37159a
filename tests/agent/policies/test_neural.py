"""MBA-RAG's policy: its small network against PyTorch, its encoder against a plain training loop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from armwise.agent.policies import neural
from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import hash_features
from armwise.agent.policies.epsilon_greedy import EpsilonGreedy, EpsilonSchedule
from armwise.agent.policies.neural import NeuralGreedy, load_pretrained
from armwise.feedback.events import Context, Decision
from tests.contracts import (
    ARMS,
    CHECKS,
    CONTEXT_CHECKS,
    EXACT_CHECKS,
    LEARNING_CHECKS,
    Build,
    contexts,
    epsilon_of,
    history,
    teach,
)


def make_encoder(folder: Path, hidden: int = 16) -> Path:
    """Make a BERT of one small layer, with random weights."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "long", "short", "river", "?"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("tiny") / "encoder")


def decision(drawn: str, seen: Context, arms: tuple[str, ...] = ARMS) -> Decision:
    return Decision("d", seen, arms, (1.0 / len(arms),) * len(arms), drawn, "neural", 1)


def scores(policy: NeuralGreedy, seen: Context, arms: Sequence[str] = ARMS) -> list[float]:
    """Return what the network expects of each arm."""
    return policy.predictions(seen, arms).tolist()


class Reference:
    """The small network in PyTorch: a layer, an output an arm, AdamW."""

    def __init__(self, first: np.ndarray) -> None:
        n_hidden, n_inputs = first.shape
        self.layer = torch.nn.Linear(n_inputs - 1, n_hidden, dtype=torch.float64)
        self.layer.weight.data = torch.tensor(first[:, :-1])
        self.layer.bias.data = torch.tensor(first[:, -1])
        self.outputs = {arm: torch.nn.Linear(n_hidden, 1, dtype=torch.float64) for arm in ARMS}
        for output in self.outputs.values():
            torch.nn.init.zeros_(output.weight)
            torch.nn.init.ones_(output.bias)
        parts = [self.layer, *self.outputs.values()]
        self.optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=0.005)

    def __call__(self, seen: Context, arm: str) -> torch.Tensor:
        x = torch.tensor([*hash_features(seen.features, 32), *seen.embedding], dtype=torch.float64)
        return self.outputs[arm](torch.relu(self.layer(x)))

    def learn(self, seen: Context, arm: str, reward: float) -> None:
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self(seen, arm), torch.tensor([reward], dtype=torch.float64)).backward()
        self.optimizer.step()


def test_the_small_network_learns_what_pytorch_learns() -> None:
    policy = NeuralGreedy()
    bound = 1.0 / math.sqrt(36)
    reference = Reference(np.random.default_rng(0).uniform(-bound, bound, size=(64, 37)))
    for row, reward in history(policy, 150, seed=1):
        policy.learn(row, reward)
        reference.learn(row.context, row.drawn, reward)
    for seen in contexts(10, seed=2):
        expected = [reference(seen, arm).item() for arm in ARMS]
        assert scores(policy, seen) == pytest.approx(expected, abs=1e-10)


def test_an_arm_starts_at_the_prior_whenever_it_appears() -> None:
    policy = NeuralGreedy()
    seen = contexts(5, seed=3)
    assert [scores(policy, c) for c in seen] == [[1.0] * 3] * 5
    teach(policy, history(policy, 40, seed=4))
    assert [scores(policy, c, ("new", "newer")) for c in seen] == [[1.0, 1.0]] * 5


@pytest.mark.parametrize("build", [NeuralGreedy, EpsilonGreedy])
def test_the_papers_code_explores_with_one_over_the_logarithm(
    build: type[NeuralGreedy] | type[EpsilonGreedy],
) -> None:
    """Its decision t explores where a uniform number is below 1 / ln(t + 1e-5)."""
    policy = build(epsilon=1.0, decay="log")
    for t in range(1, 60):
        assert epsilon_of(policy) == pytest.approx(min(1.0, 1.0 / max(math.log(t + 1e-5), 1e-9)), abs=1e-4)
        policy.learn(decision("bm25", Context("?")), 0.5)


@given(
    st.floats(0, 1),
    st.one_of(st.none(), st.just("log"), st.floats(0.1, 1e6)),
    st.integers(0, 10**9),
)
def test_epsilon_falls_and_stays_in_its_range(epsilon: float, decay: Any, rewards: int) -> None:
    exploration = EpsilonSchedule(epsilon, decay)
    assert 0.0 <= exploration.at(rewards + 1) <= exploration.at(rewards) <= epsilon


@pytest.mark.parametrize(
    "check", [*CHECKS, *EXACT_CHECKS, *LEARNING_CHECKS, *CONTEXT_CHECKS], ids=lambda check: check.__name__
)
@pytest.mark.slow
def test_with_an_encoder_it_keeps_every_promise(encoder: Path, check: Callable[[Build], None]) -> None:
    check(lambda: NeuralGreedy(str(encoder), learning_rate=0.005))


@pytest.mark.slow
def test_the_encoder_is_trained_as_by_a_plain_loop(encoder: Path) -> None:
    policy = NeuralGreedy(str(encoder), learning_rate=1e-3)
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    outputs = torch.nn.ModuleDict({arm: torch.nn.Linear(16, 1) for arm in ARMS})
    for output in outputs.values():
        torch.nn.init.zeros_(output.weight)
        torch.nn.init.ones_(output.bias)
    optimizer = torch.optim.AdamW([*model.parameters(), *outputs.parameters()], lr=1e-3)

    def predicted(question: str, arm: str) -> torch.Tensor:
        return outputs[arm](model(**tokenizer(question, return_tensors="pt")).last_hidden_state[:, 0])[0]

    for row, reward in history(policy, 30, seed=7):
        policy.learn(row, reward)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(
            predicted(row.context.question, row.drawn), torch.tensor([reward])
        ).backward()
        optimizer.step()
    found, expected = [], []
    for question in ("long?", "short?", "long river?"):
        found += scores(policy, Context(question))
        expected += [predicted(question, arm).item() for arm in ARMS]
    assert found == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 0.01, "the loop must have taught it something"


def test_questions_are_read_up_to_a_length(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural, "MAX_LENGTH", 4)
    policy = NeuralGreedy(str(encoder), learning_rate=0.005)
    teach(policy, history(policy, 20, seed=8))
    assert scores(policy, Context("long river river river")) == scores(policy, Context("long river short"))
    assert scores(policy, Context("long river")) != scores(policy, Context("short river"))


def test_no_more_is_read_than_the_model_can(encoder: Path) -> None:
    policy = NeuralGreedy(str(encoder))
    policy.learn(decision("bm25", Context("river " * 100)), 0.0)
    assert scores(policy, Context("river " * 30)) == scores(policy, Context("river " * 200))


def test_state_of_another_encoder_under_the_same_name_is_refused(tmp_path: Path) -> None:
    place = make_encoder(tmp_path / "model")
    policy = NeuralGreedy(str(place))
    policy.learn(decision("bm25", Context("long?")), 0.0)
    state = policy.save()
    place.rename(tmp_path / "first")
    other = make_encoder(tmp_path / "second", hidden=8)
    other.rename(place)
    load_pretrained.cache_clear()  # as in another process
    with pytest.raises(PolicyError, match=r"another encoder than .* has the shape \(1, 16\), where \(1, 8\)"):
        NeuralGreedy(str(place)).load(state)


def test_an_encoder_that_cannot_be_loaded_is_named_when_it_is_needed(tmp_path: Path) -> None:
    policy = NeuralGreedy(str(tmp_path))
    assert policy.probabilities(Context("?"), ARMS).tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(PolicyError, match=r"encoder '.*' cannot be loaded"):
        policy.learn(decision("bm25", Context("?")), 1.0)


def test_without_features_and_an_embedding_an_arm_is_predicted_by_its_rewards() -> None:
    policy = NeuralGreedy(learning_rate=0.05)
    rows = history(policy, 200, seed=2)
    for row, _ in rows:
        seen = replace(row, context=Context("why?"))
        policy.learn(seen, 1.0 if row.drawn == ARMS[0] else 0.0)
    found = policy.predictions(Context("who?"), ARMS)
    assert found[0] == pytest.approx(1.0, abs=0.1)
    assert found[1:] == pytest.approx(0.0, abs=0.3)
    assert policy.load(policy.save()).predictions(Context("who?"), ARMS).tolist() == found.tolist()
