"""Why a worker ended badly, as far as its host can tell: a sentence for the report."""
