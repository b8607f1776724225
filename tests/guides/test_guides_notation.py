"""Arguments in notations of families' own have the names, the order and the types of their tool's
schema."""

from schemas.conversation import ToolSpec
from services.families import find_family
from services.guides.turn_grammar import TurnForm, turn_grammar
from tests.guides.random_model import ByteTokenizer
from tests.kit.every import for_each, for_rows

TOKENIZER = ByteTokenizer(())


@for_rows(
    [
        ("pythonic", "a=1, b='x'", "a='1'", "b='x', a=1"),
        ("pythonic", "a=1, d={'x': [None, 2.5]}", "a=1, d=[]", "a=1, d={1: 2}"),
        ("lfm2", "a=1, b=\"it's\", c=['y', 2]", "b='x'", "a=1, c={'y': 2}"),
        ("gemma4", '{a:1,b:<|"|>x<|"|>}', '{a:<|"|>1<|"|>}', "{b:1}"),
        ("gemma4", '{a:1,c:[<|"|>x<|"|>,{k:[true]}]}', "{}", "{a:1,c:1}"),
        ("minimax_m3", "NS<a>1NS</a>NS<b>it's xNS</b>", "NS<a>xNS</a>", "NS<b>xNS</b>"),
        ("minimax_m3", "NS<a>1NS</a>NS<c>NS<item>xNS</item>NS</c>", "", "NS<a>1NS</a>NS<c>xNS</c>"),
        (
            "minimax_m3",
            'NS<a>1NS</a>NS<d>{"x": 1}NS</d>',
            "NS<d>{}NS</d>",
            "NS<a>1NS</a>NS<d>1NS</d>",
        ),
    ]
)
def test_notations_of_their_own_follow_the_types_of_arguments(
    name: str, valid: str, broken: str, also_broken: str
) -> None:
    found = find_family(name)
    members = {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "c": {"type": "array"},
        "d": {"type": "object"},
    }
    schema = {"type": "object", "properties": members, "required": ["a"]}
    grammar, lost = turn_grammar(TurnForm(tools=[ToolSpec("t", schema=schema, strict=True)]), found)
    assert not lost

    def admits(arguments: str) -> bool:
        arguments = arguments.replace("NS", "]<]minimax[>[")
        call = found.style.call.replace("{name}", "t").replace("{arguments}", arguments)
        return TOKENIZER.accepts(grammar, call)

    assert admits(valid)
    assert not admits(broken)
    assert not admits(also_broken)


@for_each(["gemma4", "minimax_m3", "pythonic"])
def test_call_that_the_family_writes_fits_a_schema_of_any_depth(name: str) -> None:
    """What is inside of an argument is any value, also one that the schema does not allow."""
    found = find_family(name)
    step = {"type": "object", "properties": {"at": {"type": "array"}, "on": {"type": "boolean"}}}
    members = {"steps": {"type": "array", "items": step}, "first": step, "any": {}}
    schema = {"type": "object", "properties": members, "required": ["steps"]}
    tool = ToolSpec("t", schema=schema, strict=True)
    grammar, lost = turn_grammar(TurnForm(tools=[tool]), found)
    assert lost == ("strict t",)
    given = {"at": [1, [2.5, "x"]], "on": True}
    for arguments in (
        {"steps": [given, {"on": False}], "first": given, "any": "text"},
        {"steps": [], "any": [given]},
        {"steps": [[1], None], "first": {"at": []}},
    ):
        assert TOKENIZER.accepts(grammar, found.style.write_call("t", arguments)), arguments
    assert not TOKENIZER.accepts(grammar, found.style.write_call("t", {"first": given}))
