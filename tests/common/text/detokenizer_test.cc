#include "common/text/detokenizer.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::text {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::TempDir;
using Json = nlohmann::json;

std::unique_ptr<Tokenizer> Load(const Json& root) {
  TempDir dir;
  dir.Write("tokenizer.json", root.dump());
  auto tokenizer = Tokenizer::Load(dir.path());
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> LoadDemo() {
  auto tokenizer = Tokenizer::Load("models/lynx-tiny-moe");
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

// The demo tokenizer's tokens that stand for each byte of `bytes`.
std::vector<int32_t> ByteTokens(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char byte : bytes) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.TokenBytes(id) == std::string(1, byte)) {
        ids.push_back(id);
        break;
      }
    }
  }
  EXPECT_EQ(ids.size(), bytes.size());
  return ids;
}

// Tokens in the manner of sentence-piece vocabularies; bytes 0xE2, 0x82, 0xAC, 0xFF as ids 6 to 9.
Json PieceTokenizer(const Json& decoder) {
  return {{"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"added_tokens", Json::array({{{"id", 10}, {"content", "</s>"}, {"special", true}}})},
          {"decoder", decoder},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"vocab",
             {{"▁", 0},
              {"▁two", 1},
              {"▁cats", 2},
              {"▁▁x", 3},
              {"y", 4},
              {"!", 5},
              {"<0xE2>", 6},
              {"<0x82>", 7},
              {"<0xAC>", 8},
              {"<0xFF>", 9}}},
            {"merges", Json::array()}}}};
}

Json LlamaDecoder() {
  return Json::parse(R"({"type":"Sequence","decoders":[
      {"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
      {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})");
}

std::string Join(IncrementalDetokenizer stream, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) {
    const std::string delta = stream.Push(id);
    EXPECT_TRUE(IsValidUtf8(delta));
    text += delta;
  }
  return text + stream.Flush();
}

TEST(IncrementalDetokenizerTest, ACharacterAppearsWithItsLastByte) {
  const auto tokenizer = LoadDemo();
  const auto ids = ByteTokens(*tokenizer, "a\xF0\x9F\x8E\x89z");
  IncrementalDetokenizer stream(*tokenizer, {}, false);
  std::vector<std::string> deltas;
  for (const int32_t id : ids) deltas.push_back(stream.Push(id));
  EXPECT_THAT(deltas, ::testing::ElementsAre("a", "", "", "", "🎉", "z"));
  EXPECT_EQ(stream.Flush(), "");
}

TEST(IncrementalDetokenizerTest, AnUnfinishedTailBecomesOneReplacementMark) {
  const auto tokenizer = LoadDemo();
  for (size_t bytes = 1; bytes <= 3; ++bytes) {
    const auto ids = ByteTokens(*tokenizer, std::string_view("\xF0\x9F\x8E\x89").substr(0, bytes));
    EXPECT_EQ(Join(IncrementalDetokenizer(*tokenizer, {}, false), ids), "\uFFFD");
    EXPECT_EQ(tokenizer->Decode(ids, false), "\uFFFD");
  }
  for (const std::string_view lone : {"\xFF", "\xC0", "\x80"}) {
    const auto ids = ByteTokens(*tokenizer, lone);
    EXPECT_EQ(Join(IncrementalDetokenizer(*tokenizer, {}, false), ids), "\uFFFD");
  }
}

TEST(IncrementalDetokenizerTest, APromptThatEndsInsideACharacterIsNotRepeated) {
  const auto tokenizer = LoadDemo();
  auto prompt = tokenizer->Encode("Invoice total: ", false).value();
  const auto euro = ByteTokens(*tokenizer, "\xE2\x82\xAC");
  prompt.push_back(euro[0]);

  IncrementalDetokenizer completed(*tokenizer, prompt, false);
  EXPECT_EQ(completed.Push(euro[1]), "");
  EXPECT_EQ(completed.Push(euro[2]), "€");

  // Nothing of the output took part in the broken character: no mark.
  IncrementalDetokenizer abandoned(*tokenizer, prompt, false);
  EXPECT_EQ(abandoned.Push(ByteTokens(*tokenizer, "x")[0]), "x");
  EXPECT_EQ(IncrementalDetokenizer(*tokenizer, prompt, false).Flush(), "");

  // Nor when it went on and was not completed: the mark is due where the character begins.
  IncrementalDetokenizer broken(*tokenizer, prompt, false);
  EXPECT_EQ(broken.Push(euro[1]), "");
  EXPECT_EQ(broken.Push(ByteTokens(*tokenizer, "x")[0]), "x");
  IncrementalDetokenizer cut(*tokenizer, prompt, false);
  EXPECT_EQ(cut.Push(euro[1]), "");
  EXPECT_EQ(cut.Flush(), "");

  // A byte that no character of the prompt can take is the output's own.
  IncrementalDetokenizer own(*tokenizer, prompt, false);
  EXPECT_EQ(own.Push(ByteTokens(*tokenizer, "\xFF")[0]), "\uFFFD");
}

TEST(IncrementalDetokenizerTest, SpecialTokensAreSkippedOrShown) {
  const auto tokenizer = LoadDemo();
  const auto ids = tokenizer->Encode("hi<|im_end|>there", false).value();
  EXPECT_EQ(Join(IncrementalDetokenizer(*tokenizer, {}, true), ids), "hithere");
  EXPECT_EQ(Join(IncrementalDetokenizer(*tokenizer, {}, false), ids), "hi<|im_end|>there");
}

TEST(IncrementalDetokenizerTest, SpacesSurviveEveryCutWithMetaspace) {
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  for (const Json& decoder : {LlamaDecoder(), metaspace}) {
    const auto tokenizer = Load(PieceTokenizer(decoder));
    for (const std::vector<int32_t>& ids :
         {std::vector<int32_t>{0, 1, 2}, {1, 2, 3, 4}, {3, 0, 1}, {10, 1, 2, 0, 0, 2}}) {
      const std::string whole = tokenizer->Decode(ids, true);
      for (size_t cut = 0; cut <= ids.size(); ++cut) {
        const std::span<const int32_t> all = ids;
        EXPECT_EQ(
            tokenizer->Decode(all.first(cut), true) +
                Join(IncrementalDetokenizer(*tokenizer, all.first(cut), true), all.subspan(cut)),
            whole);
      }
    }
  }
  const auto tokenizer = Load(PieceTokenizer(LlamaDecoder()));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 1, 2}, true), " two cats");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3}, true), " x");
  EXPECT_EQ(tokenizer->TokenBytes(1), " two");
}

TEST(IncrementalDetokenizerTest, ByteFallbackMarksEachBadByte) {
  const auto tokenizer = Load(PieceTokenizer(LlamaDecoder()));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{4, 6, 7, 8, 5}, true), "y€!");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{4, 6, 7, 5}, true), "y\uFFFD\uFFFD!");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{6, 7}, true), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{9, 4}, true), "\uFFFDy");
  EXPECT_EQ(tokenizer->TokenBytes(6), "\xE2");
}

TEST(IncrementalDetokenizerTest, AnyTokensAtAnyCutGiveTheWholeDecode) {
  constexpr uint32_t kSeed = 20260601;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto demo = LoadDemo();
  const auto pieces = Load(PieceTokenizer(LlamaDecoder()));
  const auto bytes = ByteTokens(*demo, "\xF0\x9F\x8E\x89\xE2\x82\xAC\xC3\xFFz\xED\xA0\x80");
  for (const Tokenizer* tokenizer : {demo.get(), pieces.get()}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids(1 + random() % 16);
      for (int32_t& id : ids) {
        if (tokenizer == demo.get() && random() % 2 == 0) {
          id = bytes[random() % bytes.size()];
        } else {
          id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocab_size() + 1));
        }
      }
      for (const bool skip : {false, true}) {
        const std::string whole = tokenizer->Decode(ids, skip);
        EXPECT_TRUE(IsValidUtf8(whole));
        EXPECT_EQ(Join(IncrementalDetokenizer(*tokenizer, {}, skip), ids), whole);
        // Resumed after `cut` sent tokens.
        std::string sent;
        IncrementalDetokenizer stream(*tokenizer, {}, skip);
        for (size_t cut = 0; cut <= ids.size(); ++cut) {
          const std::span<const int32_t> all = ids;
          const IncrementalDetokenizer resumed(*tokenizer, {}, all.first(cut), skip);
          EXPECT_EQ(sent + Join(resumed, all.subspan(cut)), whole);
          if (cut < ids.size()) sent += stream.Push(ids[cut]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lynx::text
