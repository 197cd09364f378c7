"""A Chinese article with the markup of Chinese wikis, against its text worked out by hand."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from tasks.clean.dump import Dump
from tasks.clean.mediawiki import read_page
from tasks.clean.residue import residue
from tasks.clean.wiki import Namespaces, Wiki
from tasks.clean.wikitext import clean

DUMP = Path(__file__).parents[1] / "data" / "wiki" / "chinese_markup.xml"
TOWER = """\
望海楼（Sea View Tower，望海楼；Wànghǎilóu）是中国沿海的一座木楼，高28 m（92 ft），共5层木造。\
楼名取自古诗“登楼望海”，读作望海楼（ㄨㄤˋ ㄏㄞˇ ㄌㄡˊ），始建于约1420，面积1,350平方米。
清晨的望海楼
历史
楼毁于1644年（明末），至2024年1月1日已有380年；另一说年代不详。\
1720年由王某重建，计算机记录称有层数不详。门票为12.5 元 — 学生减半。\
另见海塔与官方网站。
第一次重修：1720年
第二次重修：1895年
尺寸
各层
层 | 高
一层 | 6 m（20 ft）
二层 | five 米
柱: 楠木
面积为$a \\times b$。
东面
西面"""


def test_a_chinese_article_reads_as_worked_out_by_hand() -> None:
    dump = Dump(DUMP)
    pages = [read_page(raw.data, dump.site) for raw in dump.raw()]
    library = {page.title.partition(":")[2]: page.text for page in pages if page.namespace == 10}
    names = Namespaces.of(dump.site.hidden, dump.site.files)
    wiki = Wiki(names, dump.site.language, library=library, today=date(2024, 1, 1))
    (tower,) = (page for page in pages if page.namespace == 0)
    cleaned = clean(tower.text, wiki, tower.title)
    assert cleaned.text == TOWER
    assert not residue(cleaned.text)
    assert cleaned.templates == {
        "noteta": 1, "infobox building": 1, "ipa": 1, "stub": 1, "reflist": 1, "defaultsort": 1,
    }  # fmt: skip
    assert set(cleaned.lost) == {
        "references", "comments", "templates", "categories", "language links",
    }  # fmt: skip
