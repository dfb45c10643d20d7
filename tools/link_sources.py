"""A hook of mkdocs.yml: links from docs/ to other files of the checkout work on the site, too.

Pages link source files by their place in the checkout, as GitHub wants it. The site has docs/ only,
so each file that is linked gets a copy there, under source/, which a browser shows as text.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def copied(link: str, page: File, docs: Path) -> tuple[Path, str] | None:
    """The file that a page links outside of docs/, and its place on the site."""
    target = Path(os.path.normpath((docs / page.src_uri).parent / link))
    if target.is_relative_to(docs) or not target.is_relative_to(docs.parent):
        return None
    place = f"source/{target.relative_to(docs.parent).as_posix()}"
    return (target, f"{place}.txt") if target.is_file() else None


def on_files(files: Files, config) -> Files:
    docs = Path(config["docs_dir"])
    for page in list(files.documentation_pages()):
        for _, link, _ in LINK.findall(page.content_string):
            found = copied(link, page, docs)
            if found and files.get_file_from_path(found[1]) is None:
                source, place = found
                files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    docs = Path(config["docs_dir"])

    def rewrite(match: re.Match) -> str:
        found = copied(match[2], page.file, docs)
        if found is None:
            return match[0]
        place = posixpath.relpath(found[1], posixpath.dirname(page.file.src_uri))
        return f"{match[1]}{place})"

    return LINK.sub(rewrite, markdown)
