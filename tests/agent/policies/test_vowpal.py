"""Without text in between, VW still gives what it gives for text."""

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from vowpalwabbit import Workspace

from armwise.agent.policies import vowpal
from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.serialization import seal
from armwise.agent.policies.vowpal import ALWAYS, VowpalWabbit
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym
from tests.contracts import ARMS, history, teach

ADF = "--cb_explore_adf -q sa -q ea -q sf"

ALGORITHMS = [
    "--epsilon 0.1",
    "--epsilon 0.1 --cb_type ips",
    "--epsilon 0.1 --cb_type dm",
    "--epsilon 0.1 --cb_type dr",
    "--epsilon 0.1 --sgd --learning_rate 0.1",
    "--epsilon 0.1 --ignore_linear s --noconstant",
    "--squarecb",
    "--squarecb --gamma_scale 30 --clip_p 1",
    "--regcb --cb_min_cost 0 --cb_max_cost 1",
    "--softmax --lambda 3",
    "--synthcover",
    "--cover 3",
    "--bag 3 --random_seed 5",
    "--rnd 3 --random_seed 5",
    "--large_action_space --max_actions 2 --epsilon 0.1",
    "--coin --epsilon 0.1",
]


def lines(context: Context, arms: Sequence[str], drawn: str = "", label: str = "") -> str:
    """Write a decision as VW's text, arms sorted by name."""

    def features(named: dict[str, float]) -> str:
        return " ".join(f"{name}:{value}" for name, value in by_pseudonym(named).items())

    dense = " ".join(f"{i}:{value}" for i, value in enumerate(context.embedding))
    text = [f"shared |s {features(dict(context.features))} |e {dense}"]
    text += [
        f"{label if name == drawn else ''} |a {name} |f {features(dict(context.arms[name]))}"
        for name in sorted(arms)
    ]
    return "\n".join(text)


class Text:
    """The reference: VW by its text format, as its manual shows it."""

    def __init__(self, args: str) -> None:
        self.vw = Workspace(arg_list=[*args.split(), *ALWAYS])

    def scores(self, context: Context, arms: Sequence[str]) -> np.ndarray:
        # Not finished: in VW's count, it is finishing an example that has seen it.
        scores = self.vw.predict(self.vw.parse(lines(context, arms)))
        return np.array([scores[sorted(arms).index(name)] for name in arms])

    def probabilities(self, context: Context, arms: Sequence[str]) -> np.ndarray:
        p = self.scores(context, arms)
        return np.asarray(p / p.sum())

    def learn(self, decision: Decision, reward: float) -> None:
        label = f"0:{1.0 - reward}:{decision.propensity}"
        self.vw.learn(lines(decision.context, decision.arms, decision.drawn, label))

    def model(self, folder: Path) -> bytes:
        self.vw.save(folder / "model")
        return (folder / "model").read_bytes()


@pytest.mark.parametrize("flags", ALGORITHMS)
def test_it_predicts_and_learns_what_vw_does_from_text(flags: str, tmp_path: Path) -> None:
    ours, text = VowpalWabbit(f"{ADF} {flags}"), Text(f"{ADF} {flags}")
    # Halves only: of 0.125, VW's own text parser makes 0.12499999.
    for decision, reward in history(ours, 80, seed=20):
        expected = text.probabilities(decision.context, decision.arms)
        np.testing.assert_allclose(
            ours.probabilities(decision.context, decision.arms), expected, rtol=0, atol=1e-15
        )
        ours.learn(decision, reward)
        text.learn(decision, reward)
    assert ours.save().endswith(b"\n" + text.model(tmp_path))


def test_any_numbers_predict_what_text_does_to_single_precision() -> None:
    rng = np.random.default_rng(21)
    flags = f"{ADF} --softmax --lambda 3"
    ours, text = VowpalWabbit(flags), Text(flags)
    teach(ours, history(ours, 50, seed=22))
    for decision, reward in history(ours, 50, seed=22):
        text.learn(decision, reward)
    for _ in range(20):
        seen = Context(
            "?", {"long": rng.normal()}, tuple(rng.normal(size=4)), {"bm25": {"steps": rng.normal()}, "x": {}}
        )
        np.testing.assert_allclose(
            ours.probabilities(seen, ("x", "bm25")), text.probabilities(seen, ("x", "bm25")), atol=1e-5
        )


def test_three_rewards_give_the_probabilities_of_epsilon_greedy() -> None:
    policy = VowpalWabbit("--cb_explore_adf --epsilon 0.3 -q sa")
    assert policy.probabilities(Context("?"), ARMS).tolist() == pytest.approx([1 / 3] * 3)
    for drawn, reward in (("bm25", 0.0), ("dense", 1.0), ("none", 0.0)):
        policy.learn(Decision("d", Context("?"), ARMS, (1 / 3,) * 3, drawn, "vowpal", 1), reward)
    assert policy.probabilities(Context("?"), ARMS).tolist() == pytest.approx([0.1, 0.8, 0.1])


def table() -> list[tuple[str, bool]]:
    """Return the arguments of each algorithm that the module tells of, and whether it resumes exactly."""
    lines = re.findall(r"  (--.*\S)\s+(resumes exactly|is replayed)$", vowpal.__doc__ or "", re.MULTILINE)
    return [(flags, said == "resumes exactly") for flags, said in lines]


def test_the_table_of_algorithms_is_complete() -> None:
    wanted = {"epsilon", "squarecb", "regcb", "regcbopt", "softmax", "synthcover", "cover", "bag"}
    assert {flags.split()[0].removeprefix("--") for flags, _ in table()} == wanted


@pytest.mark.parametrize(("flags", "exact"), (dict.fromkeys(ALGORITHMS) | dict(table())).items())
def test_exact_resuming_is_claimed_where_it_holds_alone(flags: str, exact: bool | None) -> None:
    kept = VowpalWabbit(f"{ADF} {flags}")
    rows = history(kept, 60, seed=23)
    teach(kept, rows[:30])
    resumed = kept.load(kept.save())
    teach(kept, rows[30:])
    teach(resumed, rows[30:])
    assert (resumed.save() == kept.save()) is kept.resumes_exactly
    assert exact in (None, kept.resumes_exactly), "as the table says"


def test_names_may_hold_what_text_could_not() -> None:
    seen = Context("?", {"w=a b|c:d": 1.0, "site=http://x": 1.0}, (), {"my arm|1": {"a:b": 2.0}})
    policy = VowpalWabbit()
    policy.learn(Decision("d", seen, ("my arm|1", "dense"), (0.5, 0.5), "my arm|1", "vowpal", 1), 1.0)
    assert policy.probabilities(seen, ("my arm|1", "dense")).sum() == pytest.approx(1.0)


def test_changed_features_of_an_arm_are_seen_at_once() -> None:
    policy = VowpalWabbit("--cb_explore_adf --epsilon 0.0")
    share = {"cheap": {"cost": 0.0}, "dear": {"cost": 1.0}}
    for _ in range(20):
        for drawn in share:
            decision = Decision(
                "d", Context("?", arms=share), ("cheap", "dear"), (0.5, 0.5), drawn, "vowpal", 1
            )
            policy.learn(decision, 1.0 - share[drawn]["cost"])
    assert policy.probabilities(Context("?", arms=share), ("cheap", "dear")).tolist() == [1.0, 0.0]
    share["cheap"]["cost"] = 9.0
    assert policy.probabilities(Context("?", arms=share), ("cheap", "dear")).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--cb_adf", "needs --cb_explore_adf among its arguments, got: --cb_adf"),
        ("", "needs --cb_explore_adf among its arguments, got: none"),
        ("--cb_explore_adf --regcb", "--regcb needs --cb_max_cost and --cb_min_cost"),
        ("--cb_explore_adf --regcbopt --cb_min_cost 0", "--regcbopt needs --cb_max_cost, the bounds"),
        ("--cb_explore_adf -f model", "-f has no place here"),
        ("--cb_explore_adf -imodel", "-i has no place here"),
        ("--cb_explore_adf --data=log", "--data has no place here"),
        ("--cb_explore_adf --squarecb --elim", "--elim has no place here"),
        ("--cb_explore_adf --squarecb --cb_type dr", "vw refuses .* 'dr' is not a valid choice"),
        ("--cb_explore_adf '", "cannot be read: No closing quotation"),
        ("--cb_explore_adf -b 29", "-b 29 is not a whole number up to 28"),
        ("--cb_explore_adf --bit_precision=62", "--bit_precision 62 is not a whole number up to 28"),
        ("--cb_explore_adf --bogus", "'--bogus' is not allowed"),
        ("--cb_explore_adf --squarecbb", "'--squarecbb' is not allowed; did you mean '--squarecb'"),
        ("--cb_explore_adf -p out", "'-p' is not allowed"),
        ("--cb_explore_adf -c", "'-c' is not allowed"),
        ("--cb_explore_adf -bf 9", "-b 9 is no|-b f is no|vw refuses"),
        ("--cb_explore_adf -b18 -b29", "-b 29 is not a whole number up to 28"),
        ("--cb_explore_adf -b 18 -b 29", "-b 29 is not a whole number up to 28"),
        ("--cb_explore_adf --bit_precision=18 --bit_precision=29", "--bit_precision 29 is no"),
        ("--cb_explore_adf -b +40", r"-b \+40 is not a whole number"),
        ("--cb_explore_adf --predictions=out", "'--predictions' is not allowed"),
        ("--cb_explore_adf --epsilon -pout", "'-p' is not allowed"),
        ("--cb_explore_adf --ignore 's --readable_model out'", "has a space, a quote or a backslash"),
        ("--cb_explore_adf --dictionary x:words", "'--dictionary' is not allowed"),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(args: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        VowpalWabbit(args)


def test_a_table_of_the_largest_size_is_allowed() -> None:
    assert vowpal.check_args("--cb_explore_adf -b 28") == {"--cb_explore_adf": "", "-b": "28"}


def test_an_embedding_of_another_length_is_read_whole() -> None:
    policy, fresh = (
        VowpalWabbit("--cb_explore_adf --softmax -q ea"),
        VowpalWabbit("--cb_explore_adf --softmax -q ea"),
    )
    policy.probabilities(Context("?", {}, (1.0, 2.0)), ARMS)
    seen = Context("?", {}, (1.0, 2.0, 4.0))
    for one in (policy, fresh):
        one.learn(Decision("d", seen, ARMS, (0.4, 0.3, 0.3), "none", "vowpal", 1), 0.0)
    np.testing.assert_array_equal(policy.probabilities(seen, ARMS), fresh.probabilities(seen, ARMS))
    assert policy.save() == fresh.save()


def murmur(data: bytes, seed: int) -> int:
    """VW's hash, MurmurHash3 of 32 bits: the checksum of a model's header."""
    whole = 2**32 - 1

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 & whole
        return (word << 15 | word >> 17) * 0x1B873593 & whole

    end = len(data) // 4 * 4
    for at in range(0, end, 4):
        seed ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        seed = ((seed << 13 | seed >> 19) * 5 + 0xE6546B64) & whole
    seed ^= mixed(int.from_bytes(data[end:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        seed = (seed ^ seed >> shift) * factor & whole
    return seed


def with_options(state: bytes, extra: str) -> bytes:
    """Return a state whose model has further options on its command line, with the right checksums."""
    header, _, model = state.partition(b"\n")
    words = {size: struct.Struct("<I").pack(size) for size in range(1000)}
    start = model.index(b" --")
    end = model.index(b"\0", start) + 1
    line = model[start : end - 1] + b" " + extra.encode() + b"\0"
    parts = [words[1], b"\0", b"m", *(model[at : at + 4] for at in range(17, 41, 4)), words[len(line)], line]
    check = 0
    for part in parts:
        check = murmur(part, check)
    crafted = (
        model[: start - 4] + words[len(line)] + line + words[4] + struct.pack("<I", check) + model[end + 8 :]
    )
    settings = json.loads(header)
    del settings["blake2b"]
    return seal(settings, crafted)


FILE_OPTIONS = ["--final_regressor {}", "--predictions {}", "--readable_model {}", "--cache_file {}"]


@pytest.mark.parametrize("option", FILE_OPTIONS)
def test_a_crafted_model_writes_no_file(option: str, tmp_path: Path) -> None:
    policy = VowpalWabbit()
    teach(policy, history(policy, 5, seed=25))
    crafted = with_options(policy.save(), option.format(tmp_path / "written"))
    with pytest.raises(PolicyError, match="the model has other arguments than vw"):
        policy.load(crafted)
    assert [*tmp_path.iterdir()] == []


def test_without_the_check_a_crafted_model_does_write_one(tmp_path: Path) -> None:
    """What the test above refuses is an attack that works, not bytes that VW would refuse anyway."""
    policy = VowpalWabbit()
    crafted = with_options(policy.save(), FILE_OPTIONS[1].format(tmp_path / "written"))
    (tmp_path / "model").write_bytes(crafted.partition(b"\n")[2])
    Workspace(arg_list=["-i", str(tmp_path / "model"), *ALWAYS]).finish()
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("cut", [3, 10, 20, 45, 60])
def test_a_model_that_ends_in_its_header_is_refused(cut: int) -> None:
    policy = VowpalWabbit()
    settings = json.loads(policy.save().partition(b"\n")[0])
    del settings["blake2b"]
    model = policy.save().partition(b"\n")[2][:cut]
    with pytest.raises(PolicyError, match="the model has other arguments"):
        policy.load(seal(settings, model))


@pytest.mark.parametrize(("constant", "fact"), [("VW_VERSION", "vw"), ("NAMES", "names")])
def test_state_of_another_vw_or_of_other_names_is_refused(
    monkeypatch: pytest.MonkeyPatch, constant: str, fact: str
) -> None:
    policy = VowpalWabbit()
    with monkeypatch.context() as before:
        before.setattr(f"armwise.agent.policies.vowpal.{constant}", "old")
        old = policy.save()
    with pytest.raises(PolicyError, match=rf'"{fact}": "old".* is damaged, or not of \{{"args"'):
        policy.load(old)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused_and_nothing_is_learned(reward: float) -> None:
    policy = VowpalWabbit()
    before = policy.save()
    with pytest.raises(PolicyError, match=f"reward {reward} of decision 'd' is not finite"):
        policy.learn(Decision("d", Context("?"), ARMS, (1 / 3,) * 3, "bm25", "vowpal", 1), reward)
    assert policy.save() == before


@pytest.mark.parametrize("args", ["--epsilon 0.3 --cb_type mtr -q ::", "--squarecb --gamma_scale 20 -q sf"])
def test_actions_that_are_new_each_time_are_learned_exactly_across_a_restart(args: str) -> None:
    rng = np.random.default_rng(3)
    whole = VowpalWabbit(f"--cb_explore_adf {args}")
    part = VowpalWabbit(whole.args)
    for n in range(200):
        names = tuple(f"action-{i}" for i in range(1, rng.integers(3, 7)))
        described = {name: {f"id={n}-{name}": 1.0, f"topic={rng.integers(3)}": 1.0} for name in names}
        seen = Context("?", {f"tier={rng.integers(2)}": 1.0}, (), described)
        share = (1.0 / len(names),) * len(names)
        made = Decision(str(n), seen, names, share, names[n % len(names)], "vowpal", 1)
        for policy in (whole, part):
            policy.learn(made, n % 3 / 2)
        if n % 37 == 0:
            part = part.load(part.save())
    assert part.save() == whole.save()
