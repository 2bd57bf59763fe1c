#include "common/text/tokenizer.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "common/text/detokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_size.h"

namespace lynx::text {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kDemoModel[] = "models/lynx-tiny-moe";

std::unique_ptr<Tokenizer> LoadText(const std::string& tokenizer_json) {
  TempDir dir;
  dir.Write("tokenizer.json", tokenizer_json);
  auto tokenizer = Tokenizer::Load(dir.path());
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> LoadDemo() {
  auto tokenizer = Tokenizer::Load(kDemoModel);
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

// Fixtures written by tests/tools/make_text_fixtures.py from the reference implementation.
const Json& Fixtures() {
  static const Json* fixtures = [] {
    std::ifstream file("tests/common/text/testdata/tokenizers.json");
    return new Json(Json::parse(file));
  }();
  return *fixtures;
}

// One that every byte string can be encoded with: 256 byte tokens, then `merges` in order.
Json TinyByteLevel(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json root = {{"version", "1.0"}, {"normalizer", nullptr}, {"added_tokens", Json::array()}};
  root["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  int id = 0;
  int moved = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code_point = printable ? byte : moved++;
    std::string token;
    if (code_point < 0x80) {
      token += static_cast<char>(code_point);
    } else {
      token += static_cast<char>(0xC0 | (code_point >> 6));
      token += static_cast<char>(0x80 | (code_point & 0x3F));
    }
    root["model"]["vocab"][token] = id++;
  }
  for (const auto& [left, right] : merges) {
    root["model"]["vocab"][left + right] = id++;
    root["model"]["merges"].push_back(left + " " + right);
  }
  return root;
}

class FixtureTest : public ::testing::TestWithParam<size_t> {};

TEST_P(FixtureTest, IdsAndTextEqualTheReference) {
  const Json& entry = Fixtures()[GetParam()];
  SCOPED_TRACE(entry["name"].get<std::string>());
  const auto tokenizer =
      entry.contains("tokenizer") ? LoadText(entry["tokenizer"].dump()) : LoadDemo();
  ASSERT_NE(tokenizer, nullptr);
  for (const Json& test : entry["cases"]) {
    const auto text = test["text"].get<std::string>();
    SCOPED_TRACE(test["text"].dump());
    const auto ids = test["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->Encode(text, false).value(), ids);
    EXPECT_EQ(tokenizer->Encode(text, true).value(),
              test["ids_with_special"].get<std::vector<int32_t>>());
    EXPECT_EQ(tokenizer->Decode(ids, false), test["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->Decode(ids, true), test["decoded_skip"].get<std::string>());
    IncrementalDetokenizer stream(*tokenizer, {}, false);
    std::string joined;
    for (const int32_t id : ids) joined += stream.Push(id);
    joined += stream.Flush();
    EXPECT_EQ(joined, test["decoded"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixtureTest, ::testing::Range<size_t>(0, Fixtures().size()),
                         [](const ::testing::TestParamInfo<size_t>& instance) {
                           auto name = Fixtures()[instance.param]["name"].get<std::string>();
                           for (char& c : name) {
                             if (c == '-') c = '_';
                           }
                           return name;
                         });

TEST(TokenizerTest, KnowsItsSpecialTokens) {
  const auto tokenizer = LoadDemo();
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->TokenToId("<|im_end|>"), 4095);
  EXPECT_EQ(tokenizer->TokenToId("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(4095));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
  EXPECT_TRUE(tokenizer->IsValidId(0));
  for (const int32_t id : {-1, 4096, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->IsValidId(id)) << id;
    EXPECT_FALSE(tokenizer->IsSpecial(id)) << id;
    EXPECT_EQ(tokenizer->TokenBytes(id), "") << id;
  }
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{-1, 4096, INT32_MAX}, false), "");
}

TEST(TokenizerTest, JoinedTokenBytesAreTheBytesOfTheText) {
  const auto tokenizer = LoadDemo();
  const std::string text = "naïve 🎉👩‍👧 日本 <|im_end|>\n";
  const std::vector<int32_t> ids = tokenizer->Encode(text, false).value();
  std::string joined;
  for (const int32_t id : ids) joined += tokenizer->TokenBytes(id);
  EXPECT_EQ(joined, text);
}

TEST(TokenizerTest, LoneByteTokensDecodeToValidUtf8) {
  const auto tokenizer = LoadText(TinyByteLevel().dump());
  for (int32_t first = 0; first < 256; ++first) {
    EXPECT_EQ(tokenizer->TokenBytes(first), std::string(1, static_cast<char>(first)));
    for (const int32_t second : {0x41, 0x80, 0xC0, 0xE2, 0xF0, 0xFF}) {
      const std::vector<int32_t> ids = {first, second};
      const std::string text = tokenizer->Decode(ids, false);
      EXPECT_EQ(text,
                ReplaceInvalidUtf8(tokenizer->TokenBytes(first) + tokenizer->TokenBytes(second)));
    }
  }
}

// What a user writes must not become a control token: the ranges say which text is a user's.
TEST(TokenizerTest, SpelledSpecialTokensInPlainRangesStayText) {
  const auto tokenizer = LoadDemo();
  const int32_t end = tokenizer->TokenToId("<|im_end|>").value();
  const std::string text = "<|im_end|>a<|im_end|>b<|im_end|>";
  const auto ends_of = [&](std::vector<TextRange> plain) {
    const std::vector<int32_t> ids = tokenizer->Encode(text, false, plain).value();
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(ends_of({}), 3);
  EXPECT_EQ(ends_of({{0, text.size()}}), 0);
  EXPECT_EQ(ends_of({{10, 22}}), 2);            // The one in the middle.
  EXPECT_EQ(ends_of({{10, 11}, {21, 22}}), 3);  // Only what is between them.
  EXPECT_EQ(ends_of({{9, 10}, {22, 23}}), 1);   // A byte of one is enough.
  EXPECT_EQ(ends_of({{0, 0}, {11, 11}}), 3);
}

TEST(TokenizerTest, SpecialTokensOfNormalizedTextStayTextToo) {
  Json root = TinyByteLevel();
  root["normalizer"] = {{"type", "NFKC"}};
  root["added_tokens"] = {
      {{"id", 256}, {"content", "<s>"}, {"special", true}, {"normalized", true}},
      {{"id", 257}, {"content", "<think>"}, {"special", false}, {"normalized", true}}};
  const auto tokenizer = LoadText(root.dump());
  const std::string full_width = "\uFF1Cs>";
  EXPECT_EQ(tokenizer->Encode(full_width, false).value(), (std::vector<int32_t>{256}));
  const TextRange all{0, full_width.size()};
  EXPECT_EQ(tokenizer->Encode(full_width, false, {&all, 1}).value().size(), 3u);
  const std::string mixed = "<s>user";
  const TextRange user{3, 7};
  EXPECT_EQ(tokenizer->Encode(mixed, false, {&user, 1}).value().front(), 256);
  // A token that is not special controls nothing.
  const TextRange think{0, 7};
  EXPECT_EQ(tokenizer->Encode("<think>", false, {&think, 1}).value(), (std::vector<int32_t>{257}));
}

// As `tokenizers` has it; where its own ranges would cross, it gives up, and the space stays taken.
TEST(TokenizerTest, WhiteSpaceThatATokenTookIsNoTokenThatStripsToItsLeft) {
  const auto load = [](bool lstrip, bool rstrip) {
    Json root = TinyByteLevel();
    root["added_tokens"] = {
        {{"id", 256}, {"content", "<x>"}, {"rstrip", true}},
        {{"id", 257}, {"content", "   "}, {"lstrip", lstrip}, {"rstrip", rstrip}}};
    return LoadText(root.dump());
  };
  using Ids = std::vector<int32_t>;
  const auto both = load(true, true);
  EXPECT_EQ(both->Encode("<x>   a", false).value(), (Ids{256, 'a'}));
  EXPECT_EQ(both->Encode("<x>     a", false).value(), (Ids{256, 'a'}));
  EXPECT_EQ(both->Encode("<x>    b   c", false).value(), (Ids{256, 'b', 257, 'c'}));
  EXPECT_EQ(both->Encode("a   <x>      ", false).value(), (Ids{'a', 257, 256}));
  const auto left = load(true, false);
  EXPECT_EQ(left->Encode("<x>   a", false).value(), (Ids{256, 'a'}));
  EXPECT_EQ(left->Encode("<x>      a", false).value(), (Ids{256, 'a'}));
  const auto none = load(false, false);
  EXPECT_EQ(none->Encode("<x>   a", false).value(), (Ids{256, 257, 'a'}));
}

TEST(TokenizerTest, InvalidUtf8IsRefusedWithItsPlace) {
  const auto tokenizer = LoadDemo();
  EXPECT_THAT(tokenizer->Encode("abc\xFFz", false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("byte 3")));
  EXPECT_THAT(tokenizer->Encode("\xE2\x82", false), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(tokenizer->Encode("\xED\xA0\x80", false),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A merge loop that rescans the word would take hours here; this one takes a third of a second.
TEST(TokenizerTest, OneLongWordIsNotQuadratic) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string piece = "a"; piece.size() < 64; piece += piece) merges.push_back({piece, piece});
  const auto tokenizer = LoadText(TinyByteLevel(merges).dump());
  const std::string text(1 << 20, 'a');
  const std::clock_t start = std::clock();  // Of this process: others may be at work beside it.
  const auto ids = tokenizer->Encode(text, false);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_THAT(ids, IsOk());
  EXPECT_EQ(ids->size(), text.size() / 64);
  EXPECT_LT(seconds, 30.0);
  RecordProperty("seconds", std::to_string(seconds));
}

// Quadratic work on a megabyte would run into the test's time limit.
TEST(TokenizerTest, HostileTextTakesLinearTime) {
  const size_t size = testing::ForTestSize<size_t>(10'000, 200'000, 4'000'000);
  for (const Json& entry : Fixtures()) {
    const auto name = entry["name"].get<std::string>();
    // Variations of what the others do.
    if (name.starts_with("split-") || name.starts_with("punctuation-")) continue;
    const auto tokenizer =
        entry.contains("tokenizer") ? LoadText(entry["tokenizer"].dump()) : LoadDemo();
    for (const std::string unit :
         {"a", " ", "7", "\u4E2D", "\u0301", "aB", " \r\n", "<|im_start|"}) {
      std::string text;
      while (text.size() < size) text += unit;
      for (const std::string tail : {"", "x"}) {
        EXPECT_THAT(tokenizer->Encode(text + tail, false), IsOk()) << name << " " << unit;
      }
    }
  }
}

TEST(TokenizerTest, LongRunsKeepTheirText) {
  const auto tokenizer = LoadDemo();
  for (const std::string& text :
       {std::string(200'000, ' '), std::string(200'000, '\n'), std::string(200'000, '<'),
        std::string(100'000, ' ') + "x", std::string(200'000, 'Q')}) {
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(tokenizer->Decode(*ids, false), text);
  }
}

TEST(TokenizerTest, ManyThreadsAgree) {
  const auto tokenizer = LoadDemo();
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back("word" + std::to_string(i * 7919) + " and more");
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer->Encode(text, false).value());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < texts.size(); ++i) {
          if (tokenizer->Encode(texts[i], false).value() != expected[i]) ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TokenizerLoadTest, MissingAndMalformedFilesAreNamed) {
  TempDir dir;
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer.json")));
  dir.Write("tokenizer.json", "{\"model\": }");
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tokenizer.json"), HasSubstr("line 1"))));
  dir.Write("tokenizer.json", std::string(100'000, '['));
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too deep")));
  dir.Write("tokenizer.json", "\xFF\xFE");
  EXPECT_THAT(Tokenizer::Load(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument));
  dir.Write("tokenizer.json", "[]");
  EXPECT_THAT(Tokenizer::Load(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TokenizerLoadTest, FilesThatAreThereAndCannotBeReadAreNamed) {
  TempDir dir;
  const auto config = dir.path() / "tokenizer_config.json";
  dir.Write("tokenizer.json", TinyByteLevel().dump());
  const auto is_refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(why)));
  };
  std::filesystem::create_symlink("../../blobs/gone", config);
  EXPECT_THAT(Tokenizer::Load(dir.path()), is_refused("a link to no file"));
  std::filesystem::remove(config);
  std::filesystem::create_directory(config);
  EXPECT_THAT(Tokenizer::Load(dir.path()), is_refused("not a regular file"));
  std::filesystem::remove(config);
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  EXPECT_THAT(Tokenizer::Load(dir.path()), is_refused("not a regular file"));
  std::filesystem::remove(config);
  std::filesystem::create_symlink("tokenizer_config.json", config);
  EXPECT_THAT(Tokenizer::Load(dir.path()), is_refused("cannot be opened"));
}

TEST(TokenizerLoadTest, TheConfigMayAskForTheFirstToken) {
  TempDir dir;
  Json root = TinyByteLevel();
  root["added_tokens"] = {{{"id", 256}, {"content", "<s>"}, {"special", true}}};
  dir.Write("tokenizer.json", root.dump());
  dir.Write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": {"content": "<s>"}})");
  const auto asked = Tokenizer::Load(dir.path()).value();
  EXPECT_EQ(asked->Encode("!", true).value(), (std::vector<int32_t>{256, '!'}));
  EXPECT_EQ(asked->Encode("!", false).value(), (std::vector<int32_t>{'!'}));
  dir.Write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<s>"})");
  EXPECT_EQ(Tokenizer::Load(dir.path()).value()->Encode("!", true).value(),
            (std::vector<int32_t>{'!'}));
  dir.Write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<nope>"})");
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("<nope>")));
}

struct BadFile {
  const char* pointer;  // What to change,
  const char* value;    // to what,
  const char* message;  // and what the error must say.
};

class BadTokenizerTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerTest, IsRefusedByName) {
  Json root = TinyByteLevel({{"a", "b"}});
  root[Json::json_pointer(GetParam().pointer)] = Json::parse(GetParam().value);
  TempDir dir;
  dir.Write("tokenizer.json", root.dump());
  EXPECT_THAT(Tokenizer::Load(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tokenizer.json"), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizerTest,
    ::testing::Values(
        BadFile{"/normalizer", R"({"type":"Precompiled"})", "'Precompiled' is not supported"},
        BadFile{"/normalizer",
                R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]})",
                "normalizer.normalizers[1]: normalizer type 'Nmt'"},
        BadFile{"/normalizer", "7", "'type' must be a string"},
        BadFile{"/pre_tokenizer", R"({"type":"BertPreTokenizer"})", "'BertPreTokenizer'"},
        BadFile{"/pre_tokenizer",
                R"({"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"})",
                "pattern '(a'"},
        BadFile{"/pre_tokenizer",
                R"({"type":"Split","pattern":{"Regex":"[a&&b]"},"behavior":"Isolated"})",
                "class sets"},
        BadFile{"/pre_tokenizer",
                R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways"})", "'Sideways'"},
        BadFile{"/decoder", R"({"type":"WordPiece"})", "'WordPiece'"},
        BadFile{"/decoder", "null", "decoder"},
        BadFile{"/pre_tokenizer", R"({"type":"CharDelimiterSplit","delimiter":"ab"})",
                "'delimiter' must be one character"},
        BadFile{"/pre_tokenizer", R"({"type":"Punctuation","behavior":"Sideways"})", "'Sideways'"},
        BadFile{"/post_processor", R"({"type":"PairProcessing"})", "'PairProcessing'"},
        BadFile{"/post_processor", R"({"type":"BertProcessing","sep":["x",97]})",
                "'cls' must be a pair"},
        BadFile{"/post_processor", R"({"type":"RobertaProcessing","sep":["x",97],"cls":["y",999]})",
                "id 999 is no token"},
        BadFile{"/post_processor",
                R"({"type":"Sequence","processors":[
                    {"type":"BertProcessing","sep":["x",97],"cls":["y",98]},
                    {"type":"BertProcessing","sep":["x",97],"cls":["y",98]}]})",
                "processors[1]: a second processor"},
        BadFile{"/model", R"({"type":"WordPiece","vocab":{}})", "'WordPiece'"},
        BadFile{"/model", R"({"type":"Unigram","vocab":{}})", "'vocab' must be an array"},
        BadFile{"/model", R"({"type":"Unigram","unk_id":0,"vocab":[["a",0],["b"]]})",
                "model.vocab[1]: must be a pair"},
        BadFile{"/model", R"({"type":"Unigram","unk_id":0,"vocab":[["a",0],["a",-1]]})",
                "'a' is there already"},
        BadFile{"/model", R"({"type":"Unigram","vocab":[["a",0]]})", "'unk_id' is missing"},
        BadFile{"/model", R"({"type":"Unigram","unk_id":1,"vocab":[["a",0]]})", "unk_id 1"},
        BadFile{"/model/vocab", "[]", "'vocab' must be an object"},
        BadFile{"/model/vocab/a", "-1", "token id -1"},
        BadFile{"/model/vocab/a", "18446744073709551615", "token id 18446744073709551615"},
        BadFile{"/model/vocab/a", "98", "two tokens have id 98"},
        BadFile{"/model/vocab/a", "\"x\"", "must be an integer"},
        BadFile{"/model/merges", R"(["a b c"])", "merges[0]"},
        BadFile{"/model/merges", R"([["a"]])", "merges[0]"},
        BadFile{"/model/merges", R"(["a b", "z a"])", "merges[1]: 'za' is not in the vocabulary"},
        BadFile{"/model/dropout", "0.5", "dropout"},
        BadFile{"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
        BadFile{"/model/unk_token", R"("<unk>")", "'<unk>' is not in the vocabulary"},
        BadFile{"/added_tokens", R"([{"id":5,"content":"<new>"}])", "contradicts"},
        BadFile{"/added_tokens", R"([{"id":400,"content":"a"}])", "contradicts"},
        BadFile{"/added_tokens", R"([{"content":"<new>"}])", "'id' is missing"},
        BadFile{"/added_tokens", R"([{"id":400,"content":""}])", "empty"}));

}  // namespace
}  // namespace lynx::text
