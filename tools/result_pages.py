"""A hook of mkdocs.yml: the site has pages with every row of the results.

The repository holds the rows as benchmarks/results/*.json alone.
"""

from mkdocs.structure.files import File, Files

from benchmarks import RESULTS
from benchmarks.pages import files as results
from benchmarks.pages import result_tables, surveys


def on_files(files: Files, config) -> Files:
    pages = result_tables.write_rows(results.read(RESULTS / "hopper.json"))
    pages |= surveys.write_seeds(surveys.surveys(RESULTS))
    for name, text in pages.items():
        files.append(File.generated(config, f"kernels/{name}.md", content=text))
    return files
