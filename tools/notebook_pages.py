"""A hook of mkdocs.yml: each notebook of docs/ is a page of the site, and pages link that one."""

import json

from mkdocs.structure.files import File, Files


def markdown(notebook: dict, name: str) -> str:
    """The cells of a notebook, below a link to its file."""
    parts = [f"[Download this page as a notebook]({name}), and run it."]
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts[:2] = parts[1::-1]  # the title is first
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config) -> Files:
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = markdown(json.loads(file.content_string), file.name + ".ipynb")
        text = text.replace("<details>", '<details markdown="1">')  # else its text stays as it is
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(text: str, page, config, files: Files) -> str:
    is_generated = page.file.abs_src_path is None  # it links the notebook itself
    return text if is_generated else text.replace(".ipynb)", ".md)")
