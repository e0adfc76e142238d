"""The examples in the documentation run as they stand, and print what the pages show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked
from support.pages import complaints

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SKILL.md",
        *sorted(
            f"docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md")
        ),
    ],
)
def test_a_page_does_what_it_shows(page):
    """If this fails, a reader who copies an example gets an error or another output."""
    found = forked.call(complaints, page)
    assert not found, "\n".join(found)


def test_differences_are_found(tmp_path):
    """If this fails, pages may show what no command prints."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n")
    command = [sys.executable, ROOT / "scripts" / "run_pages.py", page]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert "+42" in found.stderr
    subprocess.run([*command, "--update"], stderr=subprocess.PIPE, check=False)
    assert "```text\n42\n```" in page.read_text()


BENCHMARK = "python3 -c 'import sys; print(len(sys.argv[1:]) * 41, flush=True)'"


@pytest.mark.parametrize(
    ("options", "command", "printed"), [([], "", "0"), (["--quick"], " --quick", "41")]
)
def test_benchmarks_write_what_they_print(tmp_path, options, command, printed):
    """If this fails, figures on the benchmarks page are not those of the command beside them."""
    page = tmp_path / "page.md"
    unmarked = "```bash\nexit 1\n```\n"
    fails = "<!-- bench: as it stands -->\n```bash\necho 8; exit 1\n```\n\n```text\n7\n```\n"
    block = "<!-- bench -->\n```bash\n{}\n```\n\nIn words.\n\n```text\n{}\n```\n"
    page.write_text(unmarked + fails + block.format(f"{BENCHMARK} --quick", "old"))
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench.py", "--page", page, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert page.read_text() == unmarked + fails + block.format(BENCHMARK + command, printed)
    assert done.returncode == (0 if options else 1), done.stderr
    assert ("failed: echo 8; exit 1" in done.stderr) is not bool(options)


@pytest.fixture(scope="module")
def site():
    """The folder of the site, built, after what the build said."""
    done = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return ROOT / ".build" / "site"


def test_the_site_builds(site):
    """If this fails, a page links to nothing or a docstring cannot be shown."""
    assert (site / "index.html").exists()


# Words that people search for, and the page that has to come first.
SEARCHES = {
    "install": "how-to/install/",
    "uninstall": "how-to/install/",
    "remove": "how-to/install/",
    "energy": "how-to/measure/",
    "power limit": "explanation/leases/",
    "batch size": "explanation/tuner/",
    "HF Trainer": "how-to/frameworks/",
    "EnergyDataLoader": "how-to/recurring-jobs/",
    "torchrun": "tutorials/torchrun/",
    "DeepSpeed": "how-to/run-pipelines/",
    "LoRA": "how-to/predict/",
    "fine-tune": "tutorials/choose-hardware/",
    "RTX 4090": "reference/hardware/",
    "vLLM": "how-to/serve-a-model/",
    "CodeCarbon": "how-to/migrate/",
    "CO2": "how-to/carbon-and-prices/",
    "Slurm": "how-to/slurm/",
    "Kubernetes": "how-to/kubernetes/",
}


def test_the_search_leads_to_pages_that_say_how(site):
    """The site's own search, run as a browser runs it, leads to the reference or nowhere."""
    driver = Path(pytest.importorskip("playwright").__file__).parent / "driver"
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = ROOT / "tests" / "support" / "search_site.js"
    done = subprocess.run(
        [driver / "node", script, worker, site / "search.json", *SEARCHES],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = {
        words: [location.partition("#")[0] for location in locations]
        for words, locations in json.loads(done.stdout).items()
    }
    assert {words: (pages or ["nothing"])[0] for words, pages in results.items()} == SEARCHES
    guides = ("how-to/", "tutorials/")
    for words, pages in results.items():
        ranked = [page for page in pages if page.startswith((*guides, "reference/python/"))]
        assert ranked[0].startswith(guides), words
