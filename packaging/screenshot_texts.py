"""What is said in the pictures of the window, by language: conversations as a person would have them.

In the format that the program exports, so that they come in the way a person's own would.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_BIRDS_ANSWER = r"""A kestrel flies forwards exactly as fast as the wind blows it back. Two things follow:

1. It needs a **headwind**. Without one it has to beat its wings much faster.
2. The tail is spread and does most of the fine work.

For a wing of area $A$ in air of density $\rho$, lift has to carry the weight:

$$ \tfrac{1}{2}\,\rho\,v^2\,C_L\,A = m\,g $$

| Wind | Wing beats | Share of the time gliding |
| --- | ---: | ---: |
| Calm | 8–9 per second | 5 % |
| 4 m/s | 5–6 per second | 35 % |
| 7 m/s | 2–3 per second | 80 % |

Solved for the speed that is needed:

```python
def hover_speed(mass: float, area: float, lift: float = 1.6) -> float:
    "Metres per second of headwind that keep a bird over one spot."
    return (2 * mass * 9.81 / (1.2 * lift * area)) ** 0.5
```
"""
_BIRDS_ANSWER_ZH = r"""红隼悬停时，以与风速相等的速度迎风飞行，所以头部能稳稳地停在同一点上方。由此可见：

1. 它需要**逆风**。没有风时，翅膀必须拍得快得多。
2. 尾羽完全展开，细微的调整大多靠它完成。

设翼面积为 $A$、空气密度为 $\rho$，升力必须与体重平衡：

$$ \tfrac{1}{2}\,\rho\,v^2\,C_L\,A = m\,g $$

| 风速 | 振翅频率 | 滑翔时间占比 |
| --- | ---: | ---: |
| 无风 | 每秒 8–9 次 | 5 % |
| 4 m/s | 每秒 5–6 次 | 35 % |
| 7 m/s | 每秒 2–3 次 | 80 % |

解出所需的风速：

```python
def hover_speed(mass: float, area: float, lift: float = 1.6) -> float:
    "鸟能停在同一点上方所需的逆风速度，单位：米每秒。"
    return (2 * mass * 9.81 / (1.2 * lift * area)) ** 0.5
```
"""


@dataclass(frozen=True)
class Texts:
    """question is asked of the model; long and file stand in the composer; query is searched for."""

    question: str
    query: str
    unsent: str
    file_name: str
    file_text: str
    conversations: tuple[dict[str, Any], ...]


def _conversation(
    title: str, *turns: tuple[str, str], days_ago: int, thinking: str = "", **more: Any
) -> dict[str, Any]:
    asked = datetime.now(UTC) - timedelta(days=days_ago, minutes=30)
    messages: list[dict[str, Any]] = []
    for question, answer in turns:
        for role, text in (("user", question), ("assistant", answer)):
            messages.append(
                {
                    "key": str(len(messages)),
                    "parent": str(len(messages) - 1) if messages else None,
                    "role": role,
                    "text": text,
                    "thinking": thinking if role == "assistant" else "",
                    "status": "complete",
                    "created_at": (asked + timedelta(minutes=len(messages))).isoformat(),
                }
            )
    return {
        "format": "kestrel-chat-conversation",
        "version": 1,
        "title": title,
        "created_at": asked.isoformat(),
        "updated_at": (asked + timedelta(minutes=len(messages))).isoformat(),
        "shown": messages[-1]["key"],
        "messages": messages,
        **more,
    }


ENGLISH = Texts(
    question="Explain in a few short points why the sky is blue, then give a one-line Python example.",
    query="wind",
    unsent="Please compare this with the table above.",
    file_name="field notes.md",
    file_text="# Tuesday\n\nTwo kestrels over the meadow, wind from the west.\n" * 12,
    conversations=(
        _conversation(
            "How kestrels hover",
            ("How can a kestrel stand still in the air?", _BIRDS_ANSWER),
            days_ago=0,
            thinking="The person asks about hovering. Lift has to carry the weight; the headwind matters.",
            pinned=True,
            tags=["birds", "physics"],
        ),
        _conversation(
            "Parsing dates in Python",
            ("Which library reads ISO dates?", "The standard one: `datetime.fromisoformat`."),
            days_ago=1,
            tags=["code"],
        ),
        _conversation(
            "A week in the Alps",
            ("Plan five days of walking near Chamonix.", "Start low, and keep the wind in mind."),
            days_ago=3,
        ),
        _conversation(
            "Bread without kneading", ("How long does it rest?", "Twelve hours, in a cool place."), days_ago=9
        ),
    ),
)
CHINESE = Texts(
    question="Explain in a few short points why the sky is blue, then give a one-line Python example.",
    query="逆风",
    unsent="请把这份记录和上面的表格比较一下。",
    file_name="野外记录.md",
    file_text="# 星期二\n\n草地上空有两只红隼，西风。\n" * 12,
    conversations=(
        _conversation(
            "红隼怎样悬停",
            ("红隼为什么能停在空中不动？", _BIRDS_ANSWER_ZH),
            days_ago=0,
            thinking="问题是关于悬停的：升力要与体重平衡，逆风很关键。",
            pinned=True,
            tags=["鸟类", "物理"],
        ),
        _conversation(
            "用 Python 解析日期",
            ("哪个库能读取 ISO 日期？", "标准库就可以：`datetime.fromisoformat`。"),
            days_ago=1,
            tags=["代码"],
        ),
        _conversation(
            "阿尔卑斯山一周",
            ("请安排在霞慕尼附近徒步五天。", "先走低处的路线，并留意逆风。"),
            days_ago=3,
        ),
        _conversation("免揉面包", ("面团要醒多久？", "在阴凉处放十二个小时。"), days_ago=9),
    ),
)
