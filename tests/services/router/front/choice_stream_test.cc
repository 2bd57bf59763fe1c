#include "services/router/front/choice_stream.h"

#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const text::Tokenizer& TinyTokenizer() {
  static const text::Tokenizer* tokenizer = [] {
    auto loaded = text::Tokenizer::Load("models/lynx-tiny-moe");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded->release();
  }();
  return *tokenizer;
}

proto::Token Token(TokenId id) {
  proto::Token token;
  token.set_id(id);
  token.set_logprob(-1);
  return token;
}

std::vector<TokenId> Encode(std::string_view text) {
  auto ids = TinyTokenizer().Encode(text, false);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

ChoiceStream MakeStream(std::vector<std::string> stops, int64_t text_offset = 0) {
  auto matcher = text::StopMatcher::Create(std::move(stops));
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return ChoiceStream(TinyTokenizer(), Encode("prompt"), *std::move(matcher),
                      /*with_logprobs=*/true, /*echoed=*/false, text_offset);
}

std::vector<std::string> Bytes(const std::vector<TokenLogprob>& logprobs) {
  std::vector<std::string> bytes;
  for (const TokenLogprob& logprob : logprobs) bytes.push_back(logprob.bytes);
  return bytes;
}

TEST(ChoiceStreamTest, ALogprobWaitsForItsHeldBackText) {
  ChoiceStream stream = MakeStream({"ab!"});
  EXPECT_FALSE(stream.Push(Token(Encode("a").at(0))));
  ChoiceStream::Delta delta = stream.Take();
  EXPECT_EQ(delta.text, "");
  EXPECT_THAT(delta.logprobs, IsEmpty());
  EXPECT_FALSE(stream.Push(Token(Encode("c").at(0))));
  delta = stream.Take();
  EXPECT_EQ(delta.text, "ac");
  EXPECT_THAT(Bytes(delta.logprobs), ElementsAre("a", "c"));
}

TEST(ChoiceStreamTest, WhatAStopStringCutsOffIsGoneFromBoth) {
  ChoiceStream stream = MakeStream({"b!"});
  for (const char* text : {"a", "b"}) EXPECT_FALSE(stream.Push(Token(Encode(text).at(0))));
  EXPECT_TRUE(stream.Push(Token(Encode("!").at(0))));
  stream.Finish();
  const ChoiceStream::Delta delta = stream.Take();
  EXPECT_EQ(delta.text, "a");
  EXPECT_THAT(Bytes(delta.logprobs), ElementsAre("a"));
}

TEST(ChoiceStreamTest, OffsetsCountCharactersFromTheStartOfTheChoice) {
  ChoiceStream stream = MakeStream({}, /*text_offset=*/10);
  std::vector<int64_t> offsets;
  for (TokenId id : Encode("\xc3\xa9\xc3\xa9"
                           "a\xf0\x9f\x98\x80"
                           "b"))
    stream.Push(Token(id));
  stream.Finish();
  const ChoiceStream::Delta delta = stream.Take();
  std::string joined;
  for (const TokenLogprob& logprob : delta.logprobs) {
    // An offset is where the token's bytes begin, rounded down to a whole character.
    const std::string before = ReplaceInvalidUtf8(joined);
    EXPECT_LE(logprob.text_offset, 10 + CountCharacters(before));
    if (IsValidUtf8(joined)) {
      EXPECT_EQ(logprob.text_offset, 10 + CountCharacters(joined));
    }
    joined += logprob.bytes;
  }
  EXPECT_EQ(joined, delta.text);
}

// Whatever the tokens and the stop strings: the pieces joined are what the whole would give, every
// piece is valid UTF-8, and no log-probability is lost or doubled.
TEST(ChoiceStreamTest, PiecesJoinToTheWhole) {
  static constexpr uint32_t kSeeds[] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (uint32_t seed : kSeeds) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    for (int round = 0; round < 200; ++round) {
      std::vector<TokenId> ids;
      const size_t length = 1 + rng() % 30;
      for (size_t i = 0; i < length; ++i) {
        // Half of them single bytes, so that characters are often cut and often wrong.
        ids.push_back(static_cast<TokenId>(rng() % (rng() % 2 == 0 ? 256 : 4093)));
      }
      const std::string whole = TinyTokenizer().Decode(ids, true);
      std::vector<std::string> stops;
      if (rng() % 2 == 0) {
        // One that may well occur: a piece of the whole, at whole characters.
        size_t at = rng() % (whole.size() + 1);
        while (at < whole.size() && Utf8SequenceLength(whole.substr(at)) == 0) ++at;
        std::string stop;
        for (int c = 0; c < 3 && at < whole.size(); ++c) {
          const size_t bytes = Utf8SequenceLength(whole.substr(at));
          stop += whole.substr(at, bytes);
          at += bytes;
        }
        if (!stop.empty()) stops.push_back(stop);
      }
      const size_t found = stops.empty() ? std::string::npos : whole.find(stops[0]);

      ChoiceStream stream = MakeStream(stops);
      std::string text;
      std::vector<TokenLogprob> logprobs;
      auto take = [&] {
        ChoiceStream::Delta delta = stream.Take();
        EXPECT_TRUE(IsValidUtf8(delta.text));
        text += delta.text;
        for (TokenLogprob& one : delta.logprobs) logprobs.push_back(std::move(one));
      };
      for (TokenId id : ids) {
        const bool stopped = stream.Push(Token(id));
        take();
        if (stopped) break;
      }
      stream.Finish();
      take();
      ASSERT_EQ(text, whole.substr(0, found));
      if (found == std::string::npos) {
        ASSERT_THAT(logprobs, SizeIs(ids.size()));
      }
      for (size_t i = 0; i < logprobs.size(); ++i) {
        ASSERT_EQ(logprobs[i].bytes, TinyTokenizer().TokenBytes(ids[i]));
        ASSERT_LE(logprobs[i].text_offset, CountCharacters(text));
      }
    }
  }
}

}  // namespace
}  // namespace lynx::router
