"""Writes `conversations.json`: what transformers makes of the conversations below by each of the templates in `templates`, and which
tokens it puts around prompts.

    pip install --target PACKAGES transformers==5.24.0 jinja2==3.1.6
    PYTHONPATH=PACKAGES python conversations.py

Templates are of our own. Between them they have what published ones use of the language. A conversation is a text in JSON, for the order of
names counts; where the template refuses it, there is no text.
"""

import json
import pathlib
import tempfile

from transformers import AutoTokenizer, logging
from transformers.utils import chat_template_utils as chats

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <b>of</b> a place & 'more'",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "naïve \"city\" — 😀\u2028"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
        "limits": [1, 2.5, 1e-07, 1e16, True, None, {}, []],
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"days": 2, "city": "Rome", "exact": True}}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = [
    {"messages": [says("user", 'Hello <world> & "all"')]},
    {"messages": [says("system", "Be terse."), says("user", "Hi"), says("assistant", "Hey."), says("user", "  Again?\n")]},
    {
        "messages": [says("user", "2+2"), says("assistant", "<think>\na sum\n</think>\n\n4"), says("user", "3+3"),
                     says("assistant", "6", reasoning="another")],
        "enable_thinking": False,
    },
    {
        "messages": [says("user", "Weather in Rome?"), says("assistant", None, tool_calls=[CALL, CALL]), says("tool", '{"t": 21.5}'),
                     says("tool", "dry"), says("user", "Thanks, <result>")],
        "tools": [TOOL],
    },
    {"messages": [says("user", [{"type": "text", "text": "in"}, {"type": "image"}, {"type": "text", "text": "parts"},
                                {"type": "stop"}, {"type": "text", "text": "unseen"}])]},
    {"messages": [says("user", "one"), says("user", "two"), says("assistant", "", thinking="so")]},
]


def rendered(template, conversation):
    """The text, or none."""
    told = dict(conversation)
    messages = chats._normalize_chat_messages(told.pop("messages"))
    try:
        texts = chats.render_jinja_template(conversations=[messages], chat_template=template, **told, **TOKENS)
        return texts[0][0]
    except Exception as error:
        print(f"refused: {type(error).__name__}: {error}")
        return None


def conversations():
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for opens in (True, False):
            for conversation in CONVERSATIONS:
                told = conversation | {"add_generation_prompt": opens}
                text = rendered(path.read_text(), told)
                yield {"template": path.name, "conversation": json.dumps(told, ensure_ascii=False), "text": text}


def template(single):
    tokens = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in (("<s>", 1), ("</s>", 2))}
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if x == "A" else {"SpecialToken": {"id": x, "type_id": 0}} for x in single]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
ROBERTA = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True}
PROMPTS = [
    (None, {}),
    (None, TOKENS),
    (None, TOKENS | {"add_bos_token": True}),
    (None, {"add_bos_token": True}),
    (None, {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False, "rstrip": False,
                          "single_word": False, "special": True},
            "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}),
    (BYTES, TOKENS),
    (ROBERTA, TOKENS),
    ({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, TOKENS),
    (template(["<s>", "A"]), TOKENS),
    (template(["<s>", "A", "</s>"]), {}),
    (template(["<s>", "<s>", "A"]), TOKENS | {"add_bos_token": True}),
    (template(["<s>", "A"]), TOKENS | {"add_bos_token": False}),
    (template(["<s>", "A"]), TOKENS | {"add_bos_token": None}),
    (template(["<s>", "A"]), TOKENS | {"add_eos_token": True}),
    ({"type": "Sequence", "processors": [BYTES, template(["<s>", "A"])]}, TOKENS),
]


def prompts():
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 37)}
    for processor, config in PROMPTS:
        tokenizer = {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None, "added_tokens": [],
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": processor,
            "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocabulary},
        }
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
            (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config))
            tokens = AutoTokenizer.from_pretrained(folder).encode("w3 w5")
        yield {"tokenizer": tokenizer, "config": config, "tokens": tokens}


if __name__ == "__main__":
    logging.set_verbosity_error()
    found = {"conversations": list(conversations()), "prompts": list(prompts())}
    (HERE / "conversations.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
