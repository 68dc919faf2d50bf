"""What the best gains: the leaders' throughput with intervals, over baseline and median."""

from results_db.queries import LeaderboardRow
from tuner.web.figures.picture import Missing, Picture
from tuner.web.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    figure,
    number,
    short_labels,
    speed_axis,
    text,
    wrapped,
)
from tuner.web.gains import Gain, gains_of
from tuner.web.study_data import StudyData

_SHOWN = 12


def gains(data: StudyData) -> Picture | Missing:
    """The fastest configurations with intervals; lines mark the baseline and the median."""
    if len(data.leaderboard) < 2:
        return Missing("Fewer than two configurations were measured.")
    rows = list(data.leaderboard[:_SHOWN])
    if data.baseline is not None and data.baseline not in rows:
        rows.append(data.baseline)
    labels = short_labels(data, [row.config_key for row in rows])
    names = [wrapped(f"{_place(row, rows)} {labels[row.config_key]}", 30) for row in rows]
    num_lines = max(name.count("<br>") + 1 for name in names)
    made = figure(height=100 + (12 + 13 * num_lines) * len(rows))
    for name, colour, symbol, chosen in _groups(data, rows):
        if not chosen:
            continue
        made.add_scatter(
            x=[rows[i].tokens_per_s for i in chosen],
            y=chosen,
            name=name,
            mode="markers",
            marker={"size": 10, "color": colour, "symbol": symbol},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [rows[i].tokens_per_s_high - rows[i].tokens_per_s for i in chosen],
                "arrayminus": [rows[i].tokens_per_s - rows[i].tokens_per_s_low for i in chosen],
                "thickness": 1.5,
                "color": colour,
            },
            text=[text(rows[i].label) for i in chosen],
            hovertemplate="%{text}<br>%{x:,.4~s} tokens/s<extra></extra>",
        )
    for name, speed, colour, dash in _lines(data):
        made.add_scatter(
            x=[speed, speed],
            y=[-0.6, len(rows) - 0.4],
            mode="lines",
            name=name,
            line={"color": colour, "dash": dash, "width": 2},
            hoverinfo="name",
        )
    ends = [row.tokens_per_s_low for row in rows] + [row.tokens_per_s_high for row in rows]
    ends += [speed for _, speed, _, _ in _lines(data)]
    room = 0.04 * (max(ends) - min(ends))
    made.update_xaxes(speed_axis(range=[min(ends) - room, max(ends) + room], zeroline=False))
    made.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=names,
        tickfont={"size": 10},
        range=[len(rows) - 0.4, -0.6],
        automargin=True,
    )
    return Picture(made, _caption(data))


def _place(row: LeaderboardRow, rows: list[LeaderboardRow]) -> str:
    """The position, marked where it is shared."""
    is_tied = sum(other.position == row.position for other in rows) > 1
    return f"{row.position}{'=' if is_tied else '.'}"


def _groups(data: StudyData, rows: list[LeaderboardRow]) -> list[tuple[str, str, str, list[int]]]:
    base = data.baseline.config_key if data.baseline else None
    kinds: dict[str, list[int]] = {"first": [], "others": [], "base": []}
    for place, row in enumerate(rows):
        kind = "base" if row.config_key == base else "first" if row.position == 1 else "others"
        kinds[kind].append(place)
    return [
        ("position 1", BLUE, "circle", kinds["first"]),
        ("others", GREY, "circle", kinds["others"]),
        ("baseline's configuration", ORANGE, "diamond", kinds["base"]),
    ]


def _lines(data: StudyData) -> list[tuple[str, float, str, str]]:
    found = []
    if data.baseline is not None:
        found.append(("baseline", data.baseline.tokens_per_s, ORANGE, "dash"))
    if data.median_tokens_per_s is not None:
        found.append(("median of all", data.median_tokens_per_s, PURPLE, "dot"))
    return found


def _caption(data: StudyData) -> str:
    best = data.leaderboard[0]
    words = [f"{best.label} is first with {number(best.tokens_per_s)} tokens/s"]
    words += [f"{_words(gain)} the {gain.reference}" for gain in gains_of(data)]
    return ", ".join(words) + ". Bars are the 95 % intervals of the medians."


def _words(gain: Gain) -> str:
    return f"{gain.ratio:.2f} times ({gain.low:.2f} to {gain.high:.2f})"
