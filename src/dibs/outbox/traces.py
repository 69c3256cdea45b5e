"""The trace that a message belongs to: taken along where OpenTelemetry is at work."""


def with_trace(headers: dict[str, str]) -> dict[str, str]:
    """The headers with the current trace context, unless the caller gave one."""
    if "traceparent" in headers:
        return headers
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return headers
    carried: dict[str, str] = {}
    inject(carried)
    return {**carried, **headers}
