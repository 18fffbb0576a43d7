"""Looking into a model: traces, diagnostics, what a move means, figures, the report."""

from gmt.analysis.trace import Trace, load_trace, trace

__all__ = ["Trace", "load_trace", "trace"]
