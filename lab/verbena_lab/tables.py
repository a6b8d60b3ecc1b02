"""The tables of the page: other stacks, all results, and where the numbers come from."""

import json
import pathlib

from . import units
from .markup import escaped
from .protocols import find_protocol
from .views import plain


def peers_section(peers):
    if not peers:
        return ""
    rows = "".join(
        f'<tr><td>{escaped(peer.name)}</td><td class="n">{escaped(_plain(peer.ratio))}</td>'
        f'<td class="n">{escaped(_plain(peer.target))}</td>'
        f'<td class="{"holds" if peer.holds else "missed"}">{"✓ holds" if peer.holds else "✗ missed"}</td></tr>'
        for peer in peers
    )
    missed = sum(not peer.holds for peer in peers)
    says = f"{missed} of {len(peers)} targets missed." if missed else f"All {len(peers)} targets hold."
    return (
        f"<section><h2>Side by side with other stacks</h2><p>{says} Ratios come from interleaved runs on one machine "
        "(make bench-peers); absolute speed drifts, ratios do not.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Ratios against other stacks"><table class="peers"><thead><tr>'
        '<th scope="col">Comparison</th><th scope="col" class="n">Ratio</th><th scope="col" class="n">Target</th>'
        f'<th scope="col">Result</th></tr></thead><tbody>{rows}</tbody></table></div></section>\n'
    )


def _plain(value):
    if isinstance(value, float):
        return units.significant(value)
    return value if isinstance(value, (str, int)) else json.dumps(value)


def _cpu_cell(cost):
    return (cost.per_message, f"{units.count_text(cost.per_message)} {cost.unit[:5]}.") if cost else (None, "")


def _optional(value, text):
    return (value, "" if value is None else escaped(value))


def _count_cell(value):
    return _optional(value, lambda count: f"{count:,.0f}")


def _setting_cell(key):
    def cell(one):
        value = one.setting(key)
        return (value, "" if value is None else str(plain(value)))

    return cell


def _share_cell(value):
    return (None, "") if value is None else (value, units.percent_text(value))


def _mean_cell(one):
    if one.rate_mean_per_s is None or one.rate_deviation_per_s is None:
        return (None, "")
    text = f"{units.rate_text(one.rate_mean_per_s)} ± {units.rate_text(one.rate_deviation_per_s)}"
    return (one.rate_mean_per_s, text)


def _spread_cell(one):
    if not one.rate_range or not one.rate_per_s:
        return (None, "")
    fraction = (one.rate_range.high - one.rate_range.low) / one.rate_per_s
    return (fraction, units.percent_text(fraction))


# Title, measurement -> (sort key, text), numeric, shown only where values differ between the rows.
_COLUMNS = (
    ("Protocol", lambda one: (one.protocol, find_protocol(one.protocol).name), False, False),
    ("Mark layout", lambda one: (one.mark_layout, one.mark_layout), False, True),
    ("Device", lambda one: (one.device, one.device), False, True),
    ("Topology", lambda one: (one.topology, one.topology), False, True),
    ("Nodes", lambda one: (one.nodes, f"{one.nodes:,}"), True, True),
    ("Threads", lambda one: (one.threads, f"{one.threads:,}"), True, True),
    ("Responder nodes", lambda one: _count_cell(one.setting("responder_nodes")), True, True),
    ("Responder threads", lambda one: _count_cell(one.setting("responder_threads")), True, True),
    ("Connections", _setting_cell("model"), False, True),
    ("Receive queues", _setting_cell("receive_queues"), False, True),
    ("Waiting", _setting_cell("wait"), False, True),
    ("Inline", _setting_cell("inline_bytes"), False, True),
    ("Signal interval", _setting_cell("signal_interval"), True, True),
    ("Per doorbell", _setting_cell("post_batch"), True, True),
    ("Per poll", _setting_cell("poll_batch"), True, True),
    ("Huge pages", _setting_cell("huge_pages"), True, True),
    ("Spare receives", _setting_cell("spare_receives"), True, True),
    ("Active", lambda one: _share_cell(one.setting("active_share")), True, True),
    ("Queue pairs per node", lambda one: _count_cell(one.queue_pairs_per_node), True, True),
    ("Request", lambda one: (one.request_bytes, units.size_text(one.request_bytes)), True, True),
    ("Response", lambda one: (one.response_bytes, units.size_text(one.response_bytes)), True, True),
    ("Pending", lambda one: (one.pending, f"{one.pending:,}"), True, True),
    ("Median", lambda one: _optional(one.p50_ns, units.time_text), True, False),
    ("p99", lambda one: _optional(one.p99_ns, units.time_text), True, False),
    ("p99.9", lambda one: _optional(one.p999_ns, units.time_text), True, False),
    ("Rate", lambda one: _optional(one.rate_per_s, units.rate_text), True, False),
    ("Value bandwidth", lambda one: _optional(one.value_bandwidth_bytes_per_s, units.bandwidth_text), True, False),
    ("Total bandwidth", lambda one: _optional(one.total_bandwidth_bytes_per_s, units.bandwidth_text), True, False),
    ("Mean ± deviation", _mean_cell, True, True),
    ("Spread", _spread_cell, True, True),
    ("Runs", lambda one: (one.runs, f"{one.runs:,}"), True, True),
    ("Requester CPU", lambda one: _cpu_cell(one.requester_cpu), True, True),
    ("Responder CPU", lambda one: _cpu_cell(one.responder_cpu), True, True),
    ("Empty looks", lambda one: _share_cell(one.empty_look_share), True, True),
    ("Verified", lambda one: (int(one.verified), "yes" if one.verified else "no"), False, False),
    ("Errors", lambda one: (one.errors, f"{one.errors:,}"), True, False),
    ("File", lambda one: (one.source.file, pathlib.Path(one.source.file).name), False, True),
)


def results_section(measurements):
    columns, same = [], []
    for title, cell, numeric, only_varying in _COLUMNS:
        values = {cell(one)[0] for one in measurements}
        if only_varying and len(values) == 1:
            text = cell(measurements[0])[1]
            if text and title not in ("File",):
                same.append(f"{title.lower()} {text}")
        else:
            columns.append((title, cell, numeric))
    head = "".join(
        f'<th scope="col"{" class=n" if numeric else ""} aria-sort="none"><button type="button">{title}</button></th>'
        for title, _, numeric in columns
    )
    rows = []
    for one in measurements:
        cells = []
        for index, (_, cell, numeric) in enumerate(columns):
            key, text = cell(one)
            tag = "th scope=row" if index == 0 else "td"
            sort = "" if key is None else f' data-key="{escaped(key)}"'
            cells.append(f'<{tag}{" class=n" if numeric else ""}{sort}>{escaped(text)}</{tag.split()[0]}>')
        rows.append(f'<tr{" class=failed" if one.errors else ""}>{"".join(cells)}</tr>')
    common = f" All rows: {', '.join(same)}." if same else ""
    return (
        f'<section id="all"><h2>All {len(measurements):,} results</h2>'
        "<p>Latency is one round trip. Value bandwidth counts responses, total bandwidth requests too. Click a column "
        f"to sort by it.{escaped(common)}</p>"
        '<p class="filter"><label for="filter">Show rows with</label>'
        '<input id="filter" type="search" placeholder="e.g. read 1 MiB" autocomplete="off">'
        '<output id="shown" for="filter"></output></p>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="All results"><table class="sortable"><thead>'
        f'<tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>\n'
    )


def provenance_section(results):
    blocks = []
    for source in results.sources:
        facts = [("File", source.file), ("Device", source.device), ("Commit", source.commit)]
        facts += [(key, value) for key, value in source.extra.items()]
        if isinstance(source.machine, dict):
            machine = "".join(
                f"<dt>{escaped(key)}</dt><dd>{escaped(_value(value))}</dd>" for key, value in source.machine.items()
            )
            machine = f"<dl>{machine}</dl>"
        else:
            machine = escaped(source.machine)
        rows = "".join(f"<dt>{escaped(key)}</dt><dd>{escaped(_value(value))}</dd>" for key, value in facts)
        rows += f"<dt>Machine</dt><dd>{machine}</dd><dt>Command</dt><dd><code>{escaped(source.command)}</code></dd>"
        blocks.append(f'<dl class="source">{rows}</dl>')
    return "<section><h2>Where the numbers come from</h2>" + "".join(blocks) + "</section>\n"


def _value(value):
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return value if isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)
