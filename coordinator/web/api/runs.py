"""Shell. All runs in short, as they stand in the page's list."""

from __future__ import annotations

import asyncio
from typing import Any

from drumbeat.coordinator.api.documents import Document, document_of, goodput_document
from drumbeat.coordinator.cluster.term import Term
from drumbeat.v1 import query_pb2 as pb

# Runs whose goodput is looked at between two turns of the others: some ms.
RUNS_PER_TURN = 50


async def runs_document(term: Term, only_run: str) -> Document:
    """Return all runs, or those of one id alone, each with what its time went into."""
    documents: list[Document] = []
    asked = pb.ListRunsRequest(page_size=RUNS_PER_TURN)
    while True:
        page = await term.queries.ListRuns(asked)
        shown = [run for run in page.runs if only_run in ("", run.run_id)]
        documents += [{**document_of(run), "goodput": await goodput(term, run)} for run in shown]
        if not page.next_page_token:
            return {"runs": documents}
        asked.page_token = page.next_page_token
        await asyncio.sleep(0)


async def goodput(term: Term, run: pb.Run) -> dict[str, Any]:
    """Return in short what the time of a run went into."""
    asked = pb.GetGoodputRequest(run_id=run.run_id, generation=run.generation)
    whole = goodput_document(run.run_id, await term.queries.GetGoodput(asked))
    return {name: whole[name] for name in ("effective_ratio", "whole_s", "is_running", "parts")}
