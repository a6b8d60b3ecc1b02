"""Numbers as people read them. Inputs carry their unit in the parameter's name."""

NO_BREAK_SPACE = "\u00a0"


def significant(value, digits=3):
    """`value` with `digits` significant digits and without an exponent; zeros at the end stay, so that columns align."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1) - 0.5:
        return f"{value:,.0f}"
    before_point = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    text = f"{value:.{max(digits - max(before_point, 1), 0)}f}"
    return text if float(text) else f"{value:.{digits - 1}g}"


def _scaled(value, steps, trim):
    """The first step whose rounded value stays below the next one: 999.9 ns reads 1.00 µs, not 1,000 ns."""
    factor, unit = next((step for step in steps[:-1] if abs(value) / step[0] < 999.5), steps[-1])
    number = f"{value / factor:.3g}" if trim and abs(value) / factor < 1000 else significant(value / factor)
    return number + NO_BREAK_SPACE + unit


def time_text(time_ns, trim=False):
    """`trim` drops zeros at the end, as on an axis."""
    return _scaled(time_ns, [(1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")], trim)


def bandwidth_text(bytes_per_s, trim=False):
    return _scaled(bytes_per_s, [(1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")], trim)


def rate_text(messages_per_s, trim=False):
    return _scaled(messages_per_s, [(1, "/s"), (1e3, "k/s"), (1e6, "M/s"), (1e9, "G/s")], trim)


def count_text(value):
    """A plain count such as instructions per message."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else significant(value)


def size_text(size_bytes):
    """Sizes are powers of two in this field: 1 KiB = 1024 B; whatever is not a round multiple stays in bytes."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= factor and size_bytes % (factor // 4) == 0:
            return f"{size_bytes / factor:g}{NO_BREAK_SPACE}{unit}"
    return f"{size_bytes:,}{NO_BREAK_SPACE}B"


def percent_text(fraction):
    percent = fraction * 100
    digits = 0 if abs(percent) >= 9.5 else 1
    return f"{percent:.{digits}f}{NO_BREAK_SPACE}%"
