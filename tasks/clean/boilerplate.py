"""Sections that hold an article's apparatus and not its text: references, links, "See also".

The names of their headings come from a table by language. Where headings carry their level, a
section goes with its subsections (`Apparatus`); in plain text only a run at the end can be told
from prose (`drop_apparatus`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Kind = Literal["references", "external_links", "see_also", "further_reading", "categories"]

# A heading is compared in lower case, without its last colon.
_HEADINGS: dict[str, dict[Kind, str]] = {
    "en": {
        "references": "references|notes|footnotes|citations|notes and references|reference notes"
        "|references and notes|sources|works cited|endnotes|reference list|explanatory notes",
        "external_links": "external links|external link|external links and references|weblinks",
        "see_also": "see also|related articles|related topics",
        "further_reading": "further reading|bibliography|literature|additional reading",
    },
    "de": {
        "references": "einzelnachweise|anmerkungen|quellen|belege|fußnoten|nachweise",
        "external_links": "weblinks", "see_also": "siehe auch", "further_reading": "literatur",
    },
    "fr": {
        "references": "références|notes et références|notes|sources",
        "external_links": "liens externes|lien externe",
        "see_also": "voir aussi|articles connexes|annexes", "further_reading": "bibliographie",
    },
    "es": {
        "references": "referencias|notas|notas y referencias|fuentes",
        "external_links": "enlaces externos|enlace externo", "see_also": "véase también",
        "further_reading": "bibliografía|lectura adicional",
    },
    "it": {
        "references": "note|fonti|riferimenti", "external_links": "collegamenti esterni",
        "see_also": "voci correlate", "further_reading": "bibliografia",
    },
    "pt": {
        "references": "referências|notas|notas e referências|fontes",
        "external_links": "ligações externas|links externos",
        "see_also": "ver também|veja também", "further_reading": "bibliografia",
    },
    "nl": {
        "references": "bronnen|referenties|noten|voetnoten|bronvermelding",
        "external_links": "externe links|externe link", "see_also": "zie ook",
        "further_reading": "literatuur",
    },
    "sv": {
        "references": "referenser|källor|noter|fotnoter", "external_links": "externa länkar",
        "see_also": "se även", "further_reading": "litteratur|vidare läsning",
    },
    "pl": {
        "references": "przypisy|uwagi|źródła", "external_links": "linki zewnętrzne",
        "see_also": "zobacz też", "further_reading": "bibliografia",
    },
    "cs": {
        "references": "reference|poznámky|zdroje", "external_links": "externí odkazy",
        "see_also": "související články|viz též", "further_reading": "literatura",
    },
    "ru": {
        "references": "примечания|источники|сноски|комментарии", "external_links": "ссылки",
        "see_also": "см. также", "further_reading": "литература",
    },
    "uk": {
        "references": "примітки|джерела|виноски", "external_links": "посилання",
        "see_also": "див. також", "further_reading": "література",
    },
    "bg": {
        "references": "източници|бележки|бележки и източници|цитирани източници",
        "external_links": "външни препратки", "see_also": "вижте също|виж също",
        "further_reading": "литература|библиография",
    },
    "tr": {
        "references": "kaynakça|notlar|dipnotlar|kaynaklar", "external_links": "dış bağlantılar",
        "see_also": "ayrıca bakınız", "further_reading": "konuyla ilgili yayınlar",
    },
    "zh": {
        "references": "参考文献|參考文獻|参考资料|參考資料|注释|註釋|註解|注解|脚注|腳註"
        "|参考|參考|来源|來源|参考来源|參考來源",
        "external_links": "外部链接|外部連結|外部連接|外部链結",
        "see_also": "参见|參見|另见|另見|相关条目|相關條目",
        "further_reading": "延伸阅读|延伸閱讀|扩展阅读|擴展閱讀",
    },
    "ja": {
        "references": "脚注|出典|注釈|参考文献|注|註|註釈|脚注・出典|参考資料",
        "external_links": "外部リンク", "see_also": "関連項目|関連記事",
        "further_reading": "関連文献|関連書籍",
    },
    "ko": {
        "references": "각주|주석|출처|참고 문헌|참고문헌|참고 자료",
        "external_links": "외부 링크|바깥 고리",
        "see_also": "같이 보기|관련 항목", "further_reading": "더 읽을거리",
    },
    "ar": {
        "references": "مراجع|المراجع|مصادر|المصادر|هوامش|ملاحظات", "external_links": "وصلات خارجية",
        "see_also": "انظر أيضا|انظر أيضًا|طالع أيضا", "further_reading": "قراءة متعمقة",
    },
    "th": {
        "references": "อ้างอิง|เชิงอรรถ|หมายเหตุ", "external_links": "แหล่งข้อมูลอื่น",
        "see_also": "ดูเพิ่ม", "further_reading": "อ่านเพิ่ม",
    },
    "vi": {
        "references": "tham khảo|chú thích|ghi chú|nguồn", "external_links": "liên kết ngoài",
        "see_also": "xem thêm", "further_reading": "đọc thêm",
    },
}  # fmt: skip
_SAME = {"simple": "en", "yue": "zh", "wuu": "zh", "gan": "zh", "lzh": "zh"}
# What is left of a category link where its brackets were taken off.
_CATEGORY = re.compile(
    r"(?:Category|Kategorie|Catégorie|Categoría|Categoria|Categorie|Kategori|Kategoria|Категория"
    r"|Категорія|Kategorija|分类|分類|カテゴリ|분류|تصنيف|หมวดหมู่|Thể loại)\s?:\s?\S.{0,120}"
)
# No list of links or references has longer lines; paragraphs of prose mostly have.
_LONGEST = 400


class Dropped(NamedTuple):
    """A line that a rule dropped."""

    rule: str
    line: str


def kind_of(heading: str, language: str) -> Kind | None:
    """The kind of section that a heading begins, if it is one of apparatus."""
    code = language.partition("-")[0]
    return _TABLE.get(_SAME.get(code, code), {}).get(heading.strip(" :：").lower())


class Apparatus:
    """Tells, line by line, what lies in a section of apparatus.

    Args:
        language: a wiki's code.
        kinds: what is to go.
    """

    def __init__(self, language: str, kinds: Iterable[Kind]) -> None:
        self._language, self._kinds = language, frozenset(kinds)
        self._level, self._kind = 0, None
        self.dropped: list[Dropped] = []

    _kind: Kind | None

    def drops_heading(self, title: str, level: int) -> bool:
        """Whether a heading goes. One of the same level or above ends what went before."""
        if self._kind is not None and level > self._level:
            return self._drop(title)
        kind = kind_of(title, self._language)
        self._kind, self._level = (kind if kind in self._kinds else None), level
        return self._kind is not None and self._drop(title)

    def drops(self, line: str) -> bool:
        """Whether a line that is no heading goes."""
        if self._kind is not None:
            return self._drop(line)
        if "categories" in self._kinds and _CATEGORY.fullmatch(line):
            self.dropped.append(Dropped("categories", line))
            return True
        return False

    def _drop(self, line: str) -> bool:
        self.dropped.append(Dropped(str(self._kind), line))
        return True


def drop_apparatus(text: str, language: str, kinds: Iterable[Kind]) -> tuple[str, list[Dropped]]:
    """Drop what stands at the end of a plain text under headings of apparatus.

    Args:
        text: lines; a heading is a line like another.
        language: a wiki's code.
        kinds: what is to go.

    Returns:
        The rest, and each line dropped with the name of its section's kind.
    """
    apparatus = Apparatus(language, kinds)
    lines = text.split("\n")
    start = len(lines)
    for index in range(len(lines) - 1, 0, -1):
        if len(lines[index]) > _LONGEST:
            break
        if kind_of(lines[index], language):
            start = index
    kept = [line for line in lines[:start] if not apparatus.drops(line)]
    for line in lines[start:]:
        # Headings of a run at the end are taken to be of one level.
        known = kind_of(line, language) is not None
        if not (apparatus.drops_heading(line, 2) if known else apparatus.drops(line)):
            kept.append(line)
    return "\n".join(kept).rstrip("\n"), apparatus.dropped


_TABLE: dict[str, dict[str, Kind]] = {
    language: {name: kind for kind, names in kinds.items() for name in names.split("|")}
    for language, kinds in _HEADINGS.items()
}
