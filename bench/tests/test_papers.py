"""docs/papers.md has each figure of the papers once, and commands that exist."""

import importlib.machinery
import importlib.util
import os
import pathlib
import shlex
import subprocess
import unittest

BENCH_DIR = pathlib.Path(__file__).resolve().parent.parent
loader = importlib.machinery.SourceFileLoader("papers", str(BENCH_DIR / "papers"))
papers = importlib.util.module_from_spec(importlib.util.spec_from_loader("papers", loader))
loader.exec_module(papers)

FIGURES = {
    "cormcc": "6 7 8 9 10 11 12 13 14 15 16",
    "rocc": "1 5 6 7 8 9 10 11 12 13 t2",
    "acc": "1 5 6 7 8 9 10 t1 t2",
    "tebaldi": "6 7 8 9 10 t1 t2",
    "mocc": "1 2 6 7 8 t3 t4",
}


class Papers(unittest.TestCase):
    def test_all_figures_are_there(self):
        wanted = {f"{paper}-{figure}" for paper, list_ in FIGURES.items() for figure in list_.split()}
        self.assertEqual(set(papers.figures()), wanted)

    def test_verdicts(self):
        for name, (_, _, verdict, command) in papers.figures().items():
            self.assertRegex(verdict, "^(same|counted|different|not yet)", name)
            if verdict == "not yet":
                self.assertIsNone(command, name)

    def test_commands_exist_and_know_their_options(self):
        for name, row in papers.figures().items():
            if row[3]:
                program, *words = shlex.split(row[3])
                self.assertTrue(os.access(papers.ROOT / program, os.X_OK), name)
                text = subprocess.run([papers.ROOT / program, "--help"], capture_output=True, text=True, check=True).stdout
                for word in words:
                    if word.startswith("--"):
                        self.assertIn(word, text, name)

    def test_plots_exist(self):
        text = papers.DOCUMENT.read_text(encoding="utf-8")
        for link in papers.re.findall(r"\]\((\.\./bench/[^)#]*)", text):
            self.assertTrue((papers.DOCUMENT.parent / link).resolve().exists(), link)


if __name__ == "__main__":
    unittest.main()
