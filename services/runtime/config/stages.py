"""Settings of the stages of a model: preprocessor, worker, parser."""

import difflib
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from schemas.conversation import EFFORTS
from services.runtime.config.base import (
    MAX_BUDGET,
    Amount,
    Budgets,
    Count,
    Positive,
    Table,
    also,
)
from services.runtime.config.service import StageConfig
from services.runtime.config.stores import (
    LedgerStoreConfig,
)


@dataclass(frozen=True, kw_only=True)
class PreprocessorConfig(LedgerStoreConfig, StageConfig):
    """Renders conversations to prompts."""

    aliases: Annotated[list[str], also("--alias")] = field(default_factory=list)
    """Further names of the model for clients. Models may share one (docs/several-models.md)."""
    alias_weight: Amount = 1.0
    """Share of the new sessions that this model gets for an alias that it shares with others; 0:
    none, while others take turns. Sessions stay with their model."""
    chat_template: Annotated[str | None, also("--custom-jinja-template")] = None
    """File with a chat template that replaces the model's own."""
    family: str = "auto"
    """Parser family of the model's output, or a pair `CALLS+REASONING`; `auto`: detected from its
    chat template and configuration."""
    tool_call_parser: Annotated[str | None, also("--dyn-tool-call-parser", "--tool-parser")] = None
    """Tool-call format, by its name in vLLM, SGLang or Dynamo; takes precedence over `family`."""
    reasoning_parser: Annotated[str | None, also("--dyn-reasoning-parser")] = None
    """Reasoning format, by its name in vLLM, SGLang or Dynamo; replaces that of `family` or
    `tool_call_parser`."""
    response_template: str | None = None
    """File with a `response_template` that describes the model's output, instead of a parser
    family; default: the model's own, if no family is detected (docs/families.md)."""
    strip_anthropic_preamble: bool = True
    """Remove Claude Code's billing block, which changes with every conversation and defeats prefix
    caching."""
    control_tokens_in_data: bool = False
    """Encode control tokens that the text of users, files or tools spells as control tokens, which
    lets such text forge turns (docs/prompts.md); default: as ordinary text."""
    max_model_len: Annotated[Count | None, also("--context-length", "--max-seq-len")] = None
    """Context window in tokens, if smaller than the worker's; default: the worker's."""
    max_output_tokens: Count | None = None
    """Most output tokens of a turn; default: as many as the context window leaves."""
    threads: Count = 4
    """Threads that render and tokenize."""
    render_timeout_s: Positive = 10.0
    """Most time that the chat template may take for one prompt."""
    tokenizer: Literal["auto", "fastokens", "tokenizers"] = "auto"
    """Library that encodes prompts; `auto`: fastokens if its tokens are equal for this model, else
    tokenizers."""
    template_engine: Literal["auto", "jinja"] = "auto"
    """Library that renders the chat template; `auto`: minijinja if its texts are equal for this
    template, else Jinja."""
    prompt_cache_mb: Count = 64
    """Memory in MiB for tools, grammars, encoded text and the last prompts of sessions, each
    (docs/prompts.md)."""
    router_overlap_weight: Amount = 1.0
    """Routing: cost of a prompt token that is not in a worker's KV cache; 0: ignore the caches."""
    router_load_tokens: Amount = 16384.0
    """Routing: cost of a worker without free slots, in prompt tokens."""
    router_offload_weight: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.2
    """Routing: cost of a prompt token that a worker loads from a slower memory, as a share of one
    that it computes."""
    hold_tokens: Annotated[int, Parameter(validator=Number(gte=0))] = 2048
    """Hold a turn while another one computes this many tokens or more of the beginning of its
    prompt; 0: never (docs/routing.md)."""
    template_kwargs: Annotated[Table, also("--default-chat-template-kwargs")] = field(
        default_factory=dict
    )
    """Variables of the chat template for every request: a JSON object, or a JSON, YAML or TOML
    file."""
    effort_budgets: Budgets = field(default_factory=dict)
    """Most reasoning tokens of a turn by level of effort, as in `low=1024,medium=4096,high=16384`
    (docs/thinking.md); default: none."""
    guide_calls: Literal["off", "syntax", "schema"] = "off"
    """Calls that cannot be broken (docs/guided-turns.md). `syntax`: the model can call only tools
    of the request, in its family's syntax; `schema`: also with the members and types of their
    schemas."""
    seal_key_file: str | None = None
    """File with the key that seals reasoning, the same for the parser; default: a key derived from
    the model's name."""
    enable_ledger: bool = True
    """Use the original tokens of a session's earlier turns in its prompts (docs/ledger.md)."""
    ledger_mb: Count = 64
    """Memory in MiB for the tokens of earlier turns, and the same again for whole prompts."""

    def __post_init__(self) -> None:
        """Rejects two descriptions of the output, budgets of no level, and those that leave
        nothing."""
        if self.response_template and (
            self.family != "auto" or self.tool_call_parser or self.reasoning_parser
        ):
            raise ValueError(
                "response_template takes the place of family, tool_call_parser and reasoning_parser"
            )
        for level, tokens in self.effort_budgets.items():
            if level not in EFFORTS:
                near = difflib.get_close_matches(level, EFFORTS, n=1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                levels = ", ".join(EFFORTS)
                raise ValueError(
                    f'effort_budgets: "{level}" is not a level of effort; there are {levels}{hint}'
                )
            if not 1 <= tokens <= MAX_BUDGET:
                raise ValueError(f"effort_budgets: {level} must be 1 to {MAX_BUDGET}, not {tokens}")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(StageConfig):
    """Runs one engine."""

    engine: str = "script"
    """Engine: `script` (no weights), `transformers`, `trtllm`, `vllm`; `vllm-server`,
    `sglang-server`, `llama-server`;
    or a plugin."""
    slots: Annotated[Count, also("--max-num-seqs", "--max-batch-size")] = 256
    """Most turns that decode concurrently."""
    queue_limit: Annotated[int, Parameter(validator=Number(gte=0))] = 1024
    """Most turns that wait for a slot; further ones are refused."""
    max_model_len: Annotated[Count | None, also("--context-length", "--max-seq-len")] = None
    """Context window in tokens; default: the model's own."""
    family: str = "auto"
    """Parser family of the model's output; `auto`: detected from its chat template. Only the script
    engine uses it."""
    response_template: str | None = None
    """File with a `response_template` that describes the model's output. Only the script engine
    uses it."""
    script_dir: str | None = None
    """Script engine: directory of outputs to play, instead of the built-in agent."""
    script_mode: Literal["agent", "request"] = "agent"
    """Script engine. `agent`: play `script_dir` or the built-in agent; `request`: requests contain
    the output (for tests)."""
    token_delay_ms: Amount = 5.0
    """Script engine: time between two tokens of a turn."""
    prefill_tokens_per_s: Amount = 0.0
    """Script engine: prefill speed; 0: no delay."""
    device: str = "auto"
    """Device of the transformers engine: `auto`, `cpu`, `cuda`, `cuda:1`, `mps` …"""
    dtype: str = "auto"
    """Data type of the weights: `auto` (that of the checkpoint), `bfloat16`, `float16`,
    `float32`."""
    kv_tokens: Count | None = None
    """Capacity of the KV cache in tokens; default: chosen by the engine."""
    engine_args: Annotated[Table | None, also("--extra-llm-api-options")] = None
    """Options for the engine itself: a JSON object, or a JSON, YAML or TOML file."""
    engine_url: str | None = None
    """Address of the inference server, for engines that decode through one, such as
    http://127.0.0.1:8000; several with commas (`turnwire up`): a worker for each."""
    engine_api_key_file: str | None = None
    """File with the key that the inference server requires."""
    weights_dir: str | None = None
    """Directory with all weights that operators may load with `POST /engines/weights`; default:
    none."""
    watchdog_s: Positive = 120.0
    """Time without output after which an engine with running turns counts as dead."""
    routed_experts_dir: str | None = None
    """Directory for the experts to which the tokens of each turn were routed, where the inference
    server sends them (vLLM and SGLang with --enable-return-routed-experts); default: none are
    kept."""
    routed_experts_mb: Count = 10_000
    """Most megabytes in that directory; older files are removed."""

    @property
    def engine_urls(self) -> list[str]:
        """The inference servers; one worker process decodes on one."""
        urls = (self.engine_url or "").split(",")
        return [url.strip() for url in urls if url.strip()]


@dataclass(frozen=True, kw_only=True)
class ParserConfig(LedgerStoreConfig, StageConfig):
    """Parses tokens to events."""

    seal_key_file: str | None = None
    """File with the key that seals reasoning, the same for the preprocessor; default: a key derived
    from the model's name."""
