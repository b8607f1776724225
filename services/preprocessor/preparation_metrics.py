"""How prompts were made, for `/metrics`."""

from services.preprocessor.model import ModelSetup
from services.runtime.metrics import CountCollector


def preparation_counts(setup: ModelSetup) -> CountCollector:
    """`turnwire_prompts_*`: read off the objects that count anyway."""
    history, encoder, audit = setup.history, setup.encoder, setup.audit
    return CountCollector(
        {
            "turnwire_prompts_in_parts_total": (
                "Prompts of which only the end was rendered.",
                lambda: history.parts,
            ),
            "turnwire_prompts_whole_total": ("Prompts rendered whole.", lambda: history.wholes),
            "turnwire_prompts_compared_total": ("Prompts made in the ordinary way, too.", lambda: audit.checks),
            "turnwire_prompts_differed_total": ("Prompts that were not the same then.", lambda: audit.differences),
            "turnwire_tokenizer_refusals_total": ("Texts that fastokens refused.", lambda: encoder.failures),
        }
    )
