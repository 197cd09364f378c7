"""Names of namespaces, redirects and options of images in the wikis of any language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.clean.mediawiki import Site, read_page, read_site
from tasks.clean.names import is_redirect, template_name
from tasks.clean.wiki import Namespaces, Wiki
from tasks.clean.wikitext import clean

HEAD = """<mediawiki xml:lang="{language}"><siteinfo><sitename>{name}</sitename>
<base>https://{language}.example.org/wiki/Main</base><case>{case}</case><namespaces>
<namespace key="-2" case="first-letter">{media}</namespace><namespace key="0" case="{case}" />
<namespace key="6" case="first-letter">{file}</namespace>
<namespace key="10" case="{case}">{template}</namespace>
<namespace key="14" case="first-letter">{category}</namespace></namespaces></siteinfo>"""


def _site(**names: str) -> Site:
    defaults = {
        "language": "en", "name": "Wiki", "case": "first-letter", "media": "Media",
        "file": "File", "template": "Template", "category": "Category",
    }  # fmt: skip
    return read_site(HEAD.format(**defaults | names).encode(), Path("dump"))


def _wiki(site: Site, **more: object) -> Wiki:
    names = Namespaces.of(site.hidden, site.files)
    return Wiki(names, site.language, capitalised=site.capitalised, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "link",
    [
        # Names of today, of earlier years, and in English, as MediaWiki lists them.
        "文件:甲.jpg|缩略图|{0}", "檔案:甲.jpg|縮圖|{0}", "档案:甲|thumb|{0}", "图像:甲|有框|{0}",
        "圖像:甲|thumb|{0}", "Image:A.jpg|thumb|{0}", "ファイル:A.jpg|サムネイル|{0}",
        "画像:A|thumb|代替文=x|{0}", "Файл:A.jpg|мини|справа|{0}", "Изображение:A|миниатюра|{0}",
        "Datei:A.jpg|miniatur|rechts|hochkant=1.2|{0}", "Bild:A|mini|{0}", "파일:A|섬네일|{0}",
        "Archivo:A|miniaturadeimagen|derecha|{0}", "Plik:A|mały|lewo|{0}", "ملف:A|تصغير|{0}",
        "Tiedosto:A|pienoiskuva|oikea|220x220px|{0}", "Tập tin:A|nhỏ|phải|250px|{0}",
        "Fichier:A|vignette|redresse=0.8|gauche|{0}", "file:A|thumb|{0}|300 пкс",
        "image :A|frame|{0}",
    ],
)  # fmt: skip
def test_captions_stand_under_files_of_every_language(link: str) -> None:
    assert clean(f"a [[{link.format('the wall')}]] b").text == "a b\nthe wall"
    unframed = link.format("the wall").split("|")
    assert clean(f"a [[{unframed[0]}|20px|the wall]] b").text == "a b"


@pytest.mark.parametrize(
    "link",
    [
        "Category:Walls", "分类:墙", "分類:牆", "カテゴリ:壁", "Категория:Стены", "Kategorie:B",
        "category:walls", "Catégorie:Mur", "تصنيف:جدار", "분류:벽", "Thể loại:Tường",
        "Κατηγορία:Τοίχοι", "media:A.ogg", "de:Mauer", "zh-min-nan:Chhiûⁿ", "simple:Wall",
        "be-tarask:Сьцяна",
    ],
)  # fmt: skip
def test_categories_and_other_languages_show_nothing(link: str) -> None:
    assert clean(f"Text.\n[[{link}]]").text == "Text."


def test_what_looks_like_a_namespace_and_is_none_stays() -> None:
    assert clean("[[Class: Mod]] and [[Imagine: John Lennon]]").text == (
        "Class: Mod and Imagine: John Lennon"
    )
    assert clean("[[voy:Paris|a guide]], [[mw:API|it]]").text == "a guide, it"
    assert clean("see [[:Category:Walls]], [[:カテゴリ:壁]], [[:File:A.jpg]]").text == (
        "see Walls, 壁, A.jpg"
    )


def test_the_wiki_s_own_names_come_from_its_siteinfo() -> None:
    site = _site(language="tlh", media="meDiya", file="teywI'", category="Segh", template="nab")
    wiki = _wiki(site)
    text = "QaQ [[teywI':A|thumb|pa']] [[Segh:Tlhoy']] [[Category:B]] [[meDiya:C]]"
    assert clean(text, wiki).text == "QaQ\npa'"
    assert clean(text).text != clean(text, wiki).text
    assert site.namespace_of("nab:Tlhoy'") == site.namespace_of("Template:Wall") == 10


@pytest.mark.parametrize(
    "text",
    [
        "#REDIRECT [[Wall]]", "#redirect:[[Wall]]", " \n#Redirect  [[Wall]] {{R}}",
        "#重定向 [[墙]]", "#重定向：[[墙]]", "#転送 [[壁]]", "＃転送 [[壁]]",
        "#ПЕРЕНАПРАВЛЕНИЕ [[Стена]]",
        "#перенаправление [[Стена]]", "#WEITERLEITUNG [[Mauer]]", "#REDIRECCIÓN [[Muro]]",
        "#넘겨주기 [[벽]]", "#تحويل [[جدار]]", "#пренасочване [[Стена]]", "#ÖMLEIDE OP [[Mauer]]",
    ],
)  # fmt: skip
def test_redirects_are_known_by_their_word(text: str) -> None:
    assert is_redirect(text)
    page = f"<page><title>A</title><revision><text>{text}</text></revision></page>"
    assert read_page(page.encode(), Site()).no_article == "redirects"


def test_lists_and_words_are_no_redirects() -> None:
    assert not any(
        map(
            is_redirect,
            ("# [[Wall]]", "#first [[Wall]]", "A #REDIRECT [[B]]", "#REDIRECT", "", "#" * 99_999),
        )
    )


def test_the_oldest_dumps_name_no_namespace() -> None:
    def namespace(title: str, site: Site) -> int:
        source = f"<page><title>{title}</title><revision><text>A</text></revision></page>"
        return read_page(source.encode(), site).namespace

    site = _site(language="zh", template="模板", category="分类")
    assert [namespace(title, site) for title in ("模板:墙", "分类:墙", "墙", "Talk:墙")] == [
        10,
        14,
        0,
        1,
    ]
    assert [namespace(title, Site()) for title in ("Template:A", "Help:A", "Class: B")] == [
        10,
        12,
        0,
    ]


def test_a_wiktionary_tells_small_letters_from_capitals() -> None:
    library = {"wall": "a {{{1}}} wall", "Wall": "capital"}
    wiktionary = _wiki(_site(case="case-sensitive"), library=library)
    assert clean("{{wall|high}}, {{Wall}}", wiktionary).text == "a high wall, capital"
    wikipedia = _wiki(_site(), library=library)
    assert clean("{{wall|high}}", wikipedia).text == "capital"


@pytest.mark.parametrize(
    "name", ["convert", "Template:convert", "模板:Convert", "шаблон:Convert", "Vorlage: convert"]
)
def test_templates_are_called_with_the_namespace_too(name: str) -> None:
    assert template_name(name).lower() == "convert"
    assert clean(f"{{{{{name}|5|m|ft}}}} high").text == "5 metres (16 ft) high"
    own = Wiki(library={"Tower": "{{{1}}} storeys"})
    other = name.replace("onvert", "x").replace("C", "c").replace("cx", "tower")
    assert clean(f"{{{{{other}|5}}}}", own).text == "5 storeys"


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("{{#если:x|да|нет}}", "да"), ("{{#若:|有|无}}", "无"), ("{{#לוז:x}}", ""),
        ("{{#wechsle:b|a=eins|b=zwei}}", "zwei"), ("{{#スイッチ:c|a=1|#既定=9}}", ""),
        ("{{#切り替え:c|a=1|#既定=9}}", "9"), ("{{#수식:2+3}}", "5"),
        ("{{#如果相等:1|1.0|同|異}}", "同"),
    ],
)  # fmt: skip
def test_parser_functions_go_by_their_names_in_any_language(call: str, shown: str) -> None:
    assert clean(f"Text {call}").text == f"Text {shown}".strip()


@pytest.mark.parametrize(
    "word",
    [
        "__NOTOC__",
        "__KEIN_INHALTSVERZEICHNIS__",
        "__БЕЗ_ОГЛ__",
        "__ÍNDICE__",
        "__無目錄__",
        "__目次__",
    ],
)
def test_switches_show_nothing(word: str) -> None:
    assert clean(f"{word}\nText.").text == "Text."


def test_names_in_programs_stay() -> None:
    assert clean("call __init__ and __STDC_VERSION__").text == "call __init__ and __STDC_VERSION__"
