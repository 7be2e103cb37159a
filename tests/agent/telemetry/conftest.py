"""Spans and log lines of this process, kept in memory."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from armwise.arms import tracing


class Spans:
    """What was exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.all)

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all if span.name.startswith(name)]
        return found

    def attributes(self, name: str) -> Mapping[str, Any]:
        return self.one(name).attributes or {}

    def parent(self, name: str) -> str | None:
        """Return the name of the parent of a span; None where this process has not made it."""
        parent = self.one(name).parent
        return next((s.name for s in self.all if parent and s.context.span_id == parent.span_id), None)


@pytest.fixture
def traced() -> Iterator[Callable[..., Spans]]:
    """Trace in this process: with a sampler, and what `tracing.Tracing` has besides."""

    def begin(sampler: Sampler | None = None, **options: bool) -> Spans:
        spans = Spans(sampler)
        tracing.switch(tracing.Tracing(spans.provider.get_tracer("test"), **options))
        return spans

    yield begin
    tracing.switch(None)


@contextmanager
def beginning(patch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """Let a process begin within a block, whose log lines are yielded in the place of its stderr."""
    factory, umask, turn = logging.getLogRecordFactory(), os.umask(0o022), tracing.TURN.get()
    root, written = logging.RootLogger(logging.WARNING), StringIO()
    with patch.context() as patched:
        patched.setattr(logging, "root", root)
        patched.setattr(logging.Logger, "root", root)
        patched.setattr(logging.Logger, "manager", logging.Manager(root))
        patched.setattr(sys, "__stderr__", written)
        patched.setenv("VLLM_LOGGING_CONFIG_PATH", "")
        patched.delenv("VLLM_LOGGING_CONFIG_PATH")
        try:
            yield written
        finally:
            logging.setLogRecordFactory(factory)
            os.umask(umask)
            tracing.TURN.set(turn)
            tracing.switch(None)
