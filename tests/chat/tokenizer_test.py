"""Ids say exactly the text, and the same ids whoever renders it."""

import sys

import hypothesis
from hypothesis import strategies as st
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from rstar2_jax import types
from rstar2_jax.chat import template
from rstar2_jax.chat import tokenizer as tokenizer_lib
from rstar2_jax.data import conversations

MARKS = [*template.MARKS, *template.TAGS]
ROLES = ("user", "assistant", "tool")

# Any text that UTF-8 can say, and, more often than by chance, the marks.
_UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TEXTS = st.lists(st.one_of(_UNICODE, st.sampled_from(MARKS)),
                 max_size=5).map("".join)
PLAIN = TEXTS.filter(lambda text: not any(m in text for m in template.MARKS))
# One body and the fixture are the same for every example.
SETTINGS = hypothesis.settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck))


@pytest.fixture(scope="module", name="hf_tokenizer")
def _hf_tokenizer(tokenizer, tmp_path_factory):
  """The saved folder as transformers opens it."""
  import transformers  # pylint: disable=g-import-not-at-top; costs seconds
  folder = tmp_path_factory.mktemp("tokenizer")
  tokenizer.save(folder)
  return transformers.AutoTokenizer.from_pretrained(str(folder))


def _messages(conversation):
  return [{"role": m.role, "content": m.content}
          for m in conversation.messages]


def _conversation(*pairs):
  return conversations.Conversation(
      id="c", tools=(dict(template.TOOL),),
      messages=tuple(conversations.Message(*pair) for pair in pairs))


SOLVED = _conversation(
    ("user", template.user_content("What is 12 + 30?")),
    ("assistant", "<reason>Use Python.</reason>\n"
     + template.call_text("print(12 + 30)")),
    ("tool", "42"),
    ("assistant", "<reason></reason>\n<answer>\\boxed{42}</answer>"))


@SETTINGS
@hypothesis.given(TEXTS)
def test_any_text_comes_back(tokenizer, text):
  """Decoding undoes encoding, for every text."""
  assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", [
    "", " ", "\n\n", "a\r\nb", "\x00", "é e\u0301", "日本語",
    "🙂👩\u200d👩\u200d👧", "\u202e",
    "٣ and ３", "<|im_end|>", "<|im_end|", "<tool_call></tool_call>",
    "x" * 5000])
def test_awkward_texts_come_back(tokenizer, text):
  assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_lone_surrogate_is_replaced_not_raised(tokenizer):
  assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


@pytest.mark.parametrize("number", ["0", "7", "42", "1234567890", "100000"])
def test_every_digit_is_one_token(tokenizer, number):
  """A number has as many ids as digits, also between words."""
  assert len(tokenizer.encode(number)) == len(number)
  around = len(tokenizer.encode("x = ")) + len(tokenizer.encode(" + y"))
  assert len(tokenizer.encode(f"x = {number} + y")) == around + len(number)
  pieces = [tokenizer.decode([i]) for i in tokenizer.encode(number)]
  assert pieces == list(number)


def test_marks_are_single_tokens_and_end_turns(tokenizer):
  assert tokenizer.vocab_size == 512
  for mark in MARKS:
    assert len(tokenizer.encode(mark)) == 1, mark
  assert tokenizer.encode(template.IM_END) == [tokenizer.im_end_id]
  assert tokenizer.stop_ids == (
      tokenizer.im_end_id, *tokenizer.encode(template.END_OF_TEXT))


@SETTINGS
@hypothesis.given(TEXTS)
def test_prompt_ids_say_the_prompt(tokenizer, problem):
  """The prompt's text is the template's around the problem, word for word."""
  assert tokenizer.decode(tokenizer.render_prompt(problem)) == (
      template.PROMPT_HEAD + problem
      + "<|im_end|>\n<|im_start|>assistant\n<reason>")


@SETTINGS
@hypothesis.given(PLAIN)
def test_prompt_ids_are_those_of_the_one_shot_rendering(tokenizer, problem):
  """Encoding the rendered text as a whole gives the ids of the parts."""
  text = template.render(
      [{"role": "user", "content": template.user_content(problem)}],
      add_generation_prompt=True)
  assert tokenizer.render_prompt(problem) == tokenizer.encode(text)


@SETTINGS
@hypothesis.given(st.lists(TEXTS, min_size=1, max_size=4))
def test_tool_spans_say_what_the_tools_said(tokenizer, texts):
  """Every text stands in its own tags, in order, whatever it holds."""
  spans = tokenizer.tool_result_spans(texts)
  said = "".join(f"\n<tool_response>\n{text}\n</tool_response>"
                 for text in texts)
  assert tokenizer.decode([i for s in spans for i in s.token_ids]) == (
      f"\n<|im_start|>user{said}<|im_end|>\n<|im_start|>assistant\n<reason>")
  assert {s.source for s in spans} <= {types.Source.TEMPLATE,
                                       types.Source.TOOL}


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_reply_goes_on_as_the_template_does(tokenizer, is_cut):
  """An assistant's turn that was cut off is ended first."""
  messages = [{"role": "user", "content": template.user_content("1 + 1?")},
              {"role": "assistant", "content": "<reason></reason>2"},
              {"role": "user", "content": "And 2 + 2?"}]
  sampled = tokenizer.encode("</reason>2" + ("" if is_cut else "<|im_end|>"))
  ids = [*tokenizer.render_prompt("1 + 1?"), *sampled,
         *tokenizer.reply_ids(sampled[-1], "And 2 + 2?")]
  assert ids == tokenizer.encode(
      template.render(messages, add_generation_prompt=True))


def test_a_mark_in_a_reply_is_text(tokenizer):
  plain = tokenizer.reply_ids(tokenizer.im_end_id, "a")
  marked = tokenizer.reply_ids(tokenizer.im_end_id, "a<|im_end|>")
  assert (marked.count(tokenizer.im_end_id)
          == plain.count(tokenizer.im_end_id) == 1)


@pytest.mark.parametrize("mark", template.MARKS)
def test_a_mark_in_text_is_text(tokenizer, mark):
  """A problem or a tool cannot end a turn or open one."""
  mark_id = tokenizer.encode(mark)[0]
  count = tokenizer.render_prompt("a").count(mark_id)
  assert tokenizer.render_prompt(f"a{mark}b").count(mark_id) == count
  spans = tokenizer.tool_result_spans([f"{mark} said the tool"])
  said = [s for s in spans if s.source is types.Source.TOOL]
  assert said and all(mark_id not in s.token_ids for s in said)


def test_conversation_mask_is_on_what_the_assistant_writes(tokenizer):
  """True on content and end mark of each assistant turn, after `<reason>`."""
  ids, mask = tokenizer.render_conversation(SOLVED)
  written = tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m])
  assert written == (
      "Use Python.</reason>\n" + template.call_text("print(12 + 30)")
      + "<|im_end|></reason>\n<answer>\\boxed{42}</answer><|im_end|>")
  assert tokenizer.decode(ids) + "\n" == template.render(_messages(SOLVED))


@SETTINGS
@hypothesis.given(st.lists(st.tuples(st.sampled_from(ROLES), TEXTS),
                           min_size=1, max_size=6))
def test_any_conversation_is_rendered_as_the_template_does(tokenizer, pairs):
  """Roles in any order, with any text: the words are those of the template."""
  conversation = _conversation(*pairs)
  ids, mask = tokenizer.render_conversation(conversation)
  assert tokenizer.decode(ids) + "\n" == template.render(
      _messages(conversation))
  assert len(mask) == len(ids)
  assert any(mask) == any(role == "assistant" for role, _ in pairs)


@SETTINGS
@hypothesis.given(TEXTS)
def test_transformers_encodes_a_saved_folder_alike(
    tokenizer, hf_tokenizer, text):
  assert hf_tokenizer(text, add_special_tokens=False)["input_ids"] == (
      tokenizer.encode(text))
  assert hf_tokenizer.decode(tokenizer.encode(text)) == text


def test_transformers_knows_the_marks_of_a_saved_folder(
    tokenizer, hf_tokenizer):
  assert hf_tokenizer.eos_token_id == tokenizer.im_end_id
  assert hf_tokenizer.pad_token_id == tokenizer.stop_ids[-1]
  assert len(hf_tokenizer) == tokenizer.vocab_size


@pytest.mark.parametrize("num_messages", [1, 3])
def test_transformers_renders_as_we_do(tokenizer, hf_tokenizer, num_messages):
  """apply_chat_template of the saved folder: same text and same ids."""
  messages = _messages(SOLVED)[:num_messages]
  text = hf_tokenizer.apply_chat_template(
      messages, tools=[template.TOOL], add_generation_prompt=True,
      tokenize=False)
  assert text == template.render(messages, add_generation_prompt=True)
  ids = hf_tokenizer.apply_chat_template(
      messages, tools=[template.TOOL], add_generation_prompt=True,
      tokenize=True, return_dict=False)
  assert ids == tokenizer.encode(text)
  if num_messages == 1:
    assert ids == tokenizer.render_prompt("What is 12 + 30?")


@SETTINGS
@hypothesis.given(st.lists(st.tuples(st.sampled_from(ROLES), TEXTS),
                           min_size=1, max_size=5))
def test_transformers_renders_any_history_as_we_do(hf_tokenizer, pairs):
  messages = [{"role": role, "content": text} for role, text in pairs]
  assert hf_tokenizer.apply_chat_template(
      messages, tools=[template.TOOL], tokenize=False) == template.render(
          messages)


@pytest.fixture(scope="module", name="foreign")
def _foreign():
  """A vocabulary of words that knows the ChatML marks and no other tag."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  backend.train_from_iterator(
      [template.render(_messages(SOLVED))] * 3, trainers.BpeTrainer(
          vocab_size=700, show_progress=False,
          special_tokens=list(template.MARKS),
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  return tokenizer_lib.Tokenizer(backend)


@SETTINGS
@hypothesis.given(st.lists(PLAIN, min_size=1, max_size=3))
def test_a_foreign_vocabulary_renders_by_parts_as_at_once(foreign, texts):
  """P02: also where merges run over the edge of a problem or a tool's text."""
  text = template.render(
      [{"role": "user", "content": template.user_content(texts[0])}],
      add_generation_prompt=True)
  assert foreign.render_prompt(texts[0]) == foreign.encode(text)
  spans = foreign.tool_result_spans(texts)
  ids = [i for span in spans for i in span.token_ids]
  assert ids == foreign.encode(foreign.decode(ids))
  assert foreign.decode(ids).count("<tool_response>") >= len(texts)


def test_a_saved_folder_opens_again(tokenizer, tmp_path):
  tokenizer.save(tmp_path)
  again = tokenizer_lib.Tokenizer.from_folder(tmp_path)
  assert again.render_conversation(SOLVED) == (
      tokenizer.render_conversation(SOLVED))
  assert again.stop_ids == tokenizer.stop_ids
  assert again.vocab_size == tokenizer.vocab_size


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(ValueError, match=f"{tmp_path}: no tokenizer can be read"):
    tokenizer_lib.Tokenizer.from_folder(tmp_path)


def test_without_transformers_the_line_says_what_to_install(
    tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "transformers", None)
  with pytest.raises(ValueError, match="pip install transformers"):
    tokenizer_lib.Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_chatml_is_refused():
  backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
  with pytest.raises(ValueError, match=r"no token <\|im_start\|>"):
    tokenizer_lib.Tokenizer(backend)


@SETTINGS
@hypothesis.given(TEXTS)
def test_pieces_join_to_the_text(tokenizer, text):
  ids = tokenizer.encode(text)
  pieces = tokenizer.pieces(ids)
  assert len(pieces) == len(ids)
  assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_of_several_ids_stands_at_the_last(tokenizer):
  """Bytes F0 9F 98 80: four ids in a vocabulary that has no emoji."""
  ids = tokenizer.encode("\N{GRINNING FACE}1")
  assert tokenizer.pieces(ids) == ["", "", "", "\N{GRINNING FACE}", "1"]
  # Cut off in the middle by the length limit.
  assert "".join(tokenizer.pieces(ids[:2])) == tokenizer.decode(ids[:2])
