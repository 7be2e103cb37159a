"""Faults that are planted in our code as it is imported, to see in how many worlds each is found.

Nothing is written: a module is compiled from its source with one piece replaced.
"""

import importlib.machinery
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A piece of a module, which must be there once, and what takes its place.

    Attributes:
        module: Path of the module in the package.
        old: The piece.
        new: What takes its place.
    """

    module: str
    old: str
    new: str


COMMIT, BATCH = "feedback/log/group_commit.py", "feedback/log/append.py"
COUNTING, JOIN, JOINER = (
    "feedback/log/counting.py",
    "feedback/training_log/join.py",
    "feedback/training_log/joiner.py",
)
LEARNER, VERSIONS = (
    "agent/learning/learner.py",
    "agent/serving/versions.py",
)
QUOTA, ERASURES = "agent/access/quota.py", "feedback/log/erasures.py"

SABOTAGE = {
    "commit: answered before it is durable": Sabotage(
        COMMIT,
        "            receipts = iter(self._store.append([fact for item in batch for fact in item.facts]))\n",
        "            head = self._store.log_seq()\n"
        "            n = sum(len(item.facts) for item in batch)\n"
        "            receipts = iter([Receipt(head + 1 + i) for i in range(n)])\n"
        "            threading.Thread(target=self._store.append,\n"
        "                args=([fact for item in batch for fact in item.facts],)).start()\n",
    ),
    "commit: the second half of a bisected batch is left": Sabotage(
        COMMIT, "                self._commit(batch[middle:])\n", ""
    ),
    "commit: an unavailable log counts as written": Sabotage(
        COMMIT,
        "            _settle([(item, away) for item in batch])\n",
        "            _settle([(item, [Receipt(1) for _ in item.facts]) for item in batch])\n",
    ),
    "commit: receipts of the second append are those of the first": Sabotage(
        COMMIT,
        "_settle([(item, list(islice(receipts, len(item.facts)))) for item in batch])",
        "listed = list(receipts); _settle([(item, listed[: len(item.facts)]) for item in batch])",
    ),
    "commit: the disk is not synced": Sabotage(
        "feedback/log/sqlite.py", '"synchronous=FULL"', '"synchronous=OFF"'
    ),
    "commit: feedback under a used id is stored again": Sabotage(
        BATCH,
        "            return Receipt(stored[1], FeedbackStatus.DUPLICATE)\n",
        "            item = replace(item, id=item.id + '-again')\n",
    ),
    "commit: a second execution is stored": Sabotage(
        BATCH,
        "                if name in self._executions:\n                    return Receipt()\n",
        "                if name in self._executions:\n"
        "                    name += '-again'\n"
        "                    fact = replace(fact, decision_id=name)\n",
    ),
    "join: the position is written apart from the examples": Sabotage(
        JOINER,
        "            settled_seq = find_settled_together(connection, self._rule, position)\n",
        "            settled_seq = find_settled_together(connection, self._rule, position)\n"
        "        with self._store.writing() as connection:\n",
    ),
    "join: feedback after the deadline counts": Sabotage(
        COUNTING,
        "    if item.received_at > deadline:\n        return False\n",
        "",
    ),
    "join: a retraction is ignored": Sabotage(
        JOIN, "case FeedbackKind.RETRACTION:\n", "case FeedbackKind.RETRACTION if False:\n"
    ),
    "join: early feedback is forgotten": Sabotage(
        JOIN, "where(_f.decision_id.in_(log_rows.IDS))", "where(_f.decision_id.in_(log_rows.IDS), ~_f.early)"
    ),
    "join: what was never answered is learned": Sabotage(
        JOIN, "and row.status in statuses", "and row.status is not None"
    ),
    "join: a rating is learned before it can be corrected": Sabotage(
        JOIN, "if rule.correction_s and not first.is_past:", "if False:"
    ),
    "join: what ends the time for corrections counts as one": Sabotage(
        JOIN, "seq if ends == inf else seq - 1", "seq"
    ),
    "join: closed a second too early": Sabotage(
        COUNTING, "return max(deadline, logged_at) + GRACE_S", "return max(deadline, logged_at) - 1.0"
    ),
    "join: what is closed by time alone is never looked at": Sabotage(
        JOIN, "    *(sa.select(_d.id).where(condition) for condition in _MAY_CLOSE),\n", ""
    ),
    "learner: an old epoch may still write": Sabotage(
        JOINER, "    if newest == epoch:\n", "    if newest >= epoch:\n"
    ),
    "learner: ends when the log was away": Sabotage(
        "agent/hosts/learner.py",
        "            self._learner = None  # its policy may have learned unpublished examples\n"
        "            raise\n",
        "            self._superseded, self._look_at = True, 1e99\n",
    ),
    "learner: resumes one example too early": Sabotage(
        LEARNER,
        "self._policy, self._known = saved, self._version.examples_seq",
        "self._policy, self._known = saved, max(0, self._version.examples_seq - 1)",
    ),
    "learner: versions say that they have learned more": Sabotage(
        LEARNER,
        "self._store, self.recipe, self._policy, self.learned, self._version",
        "self._store, self.recipe, self._policy, self.learned + 1, self._version",
    ),
    "learner: a reward is learned without its cost": Sabotage(
        "feedback/reward.py",
        "        total = self.price(example.cost, example.tokens_by_model, example.turns) - missed\n",
        "        total = 0.0\n",
    ),
    "draw: the price of a budget does not count": Sabotage(
        "agent/turn/steps/budget.py",
        'return [record["price"] * record["costs"][arm] for arm in arms]',
        "return [0.0 * record['costs'][arm] for arm in arms]",
    ),
    "promotion: replicas ignore a rollback": Sabotage(
        VERSIONS,
        "        if pin is None:\n            version = versions.latest",
        "        if True:\n            version = versions.latest",
    ),
    "promotion: a canary ends a rollback": Sabotage(
        "feedback/registry/promotions.py",
        "active = ActivePolicy(active.recipe, active.promotion, active.pin, tuple(canaries), row)",
        "active = ActivePolicy(active.recipe, active.promotion, None, tuple(canaries), row)",
    ),
    "promotion: decisions name another version than the one that decides": Sabotage(
        "agent/serving/replica.py",
        "self.decider.serving = Serving(served.policy, served.version.version, canaries, served.scorer)",
        "number = served.version.version - (served.version.version > 2)\n"
        "        self.decider.serving = Serving(served.policy, number, canaries, served.scorer)",
    ),
    "budget: what is owed is forgotten at a restart": Sabotage(
        "feedback/budget.py", "Pacer(budget, self.price, self.debt, ", "Pacer(budget, self.price, 0.0, "
    ),
    "budget: the newest cost is counted again": Sabotage(
        LEARNER,
        "            self._pacer.note(arm, spent)\n            self._seq = seq\n",
        "            self._pacer.note(arm, spent)\n            self._seq = seq - 1\n",
    ),
    "budget: a learner of an old epoch sets prices": Sabotage(
        "feedback/registry/prices.py", "        confirm_epoch(connection, price.epoch)\n", ""
    ),
    "budget: replicas ignore its price": Sabotage(
        "agent/serving/versions.py",
        "price = None if budget is None else prices.latest(self._store, budget)",
        "price = None",
    ),
    "drift: a new learner forgets what was detected": Sabotage(
        "feedback/drift/alarms.py",
        "            self.see(example)\n\n    def over",
        "            pass\n\n    def over",
    ),
    "load: nothing is shed": Sabotage(
        "agent/serving/admission.py", "if len(in_flight) >= replica.config.limits.in_flight:", "if False:"
    ),
    "jobs: what a dead worker began stays with it": Sabotage(
        "feedback/registry/evaluations.py",
        '(_e.alive_at < sa.bindparam("expired"))',
        "(_e.alive_at < 0.0)",
    ),
    "quota: what is admitted does not count": Sabotage(
        QUOTA, "            self._spent[limit.use] += amount\n", ""
    ),
    "erasure: answers stay": Sabotage(ERASURES, "sa.union_all(*seqs)", "sa.union_all(seqs[0], *seqs[2:])"),
    "erasure: a turn under way keeps its texts": Sabotage(
        BATCH,
        "        erasure = find_erasure(fact, self._under_way, self._secret) if self._under_way else None\n",
        "        erasure = None\n",
    ),
    "erasure: later facts keep their texts": Sabotage(
        BATCH,
        "            case Execution() | Observation() | Feedback():\n"
        "                gone = gone or fact.decision_id in self._erased\n",
        "            case Execution() | Observation() | Feedback():\n                pass\n",
    ),
    "chain: what an erasure removes is in it": Sabotage(
        "feedback/log/chain.py",
        '_UNCHAINED = (*ERASABLE[t.decisions], "erased")',
        '_UNCHAINED = ("erased",)',
    ),
    "chain: a step without the first fact of the next": Sabotage(
        JOINER, "chain.LogHead(start.log_seq, start.chain)", "chain.LogHead(start.log_seq + 1, start.chain)"
    ),
    "erasure: bytes stay in the file": Sabotage(
        "feedback/log/sqlite.py", "secure_delete=ON", "secure_delete=OFF"
    ),
}
"""By what is broken."""


def plant(name: str) -> None:
    """Let a module be imported with a fault. Raises ValueError if the piece is not there once."""
    sabotage = SABOTAGE[name]
    get_code = importlib.machinery.SourceFileLoader.get_code

    def get_sabotaged(loader: Any, fullname: str) -> CodeType | None:
        path: str = loader.get_filename(fullname)
        if not path.endswith(f"/{sabotage.module}"):
            return get_code(loader, fullname)
        source = loader.get_data(path).decode()
        if source.count(sabotage.old) != 1:
            raise ValueError(f"{sabotage.module} has {source.count(sabotage.old)} times {sabotage.old!r}")
        return compile(source.replace(sabotage.old, sabotage.new), path, "exec")

    importlib.machinery.SourceFileLoader.get_code = get_sabotaged  # type: ignore[method-assign,assignment]
