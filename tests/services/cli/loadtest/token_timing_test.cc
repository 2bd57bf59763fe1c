#include "services/cli/loadtest/token_timing.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::loadtest {
namespace {

absl::Time At(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

Chunk Piece(int ms, int bytes, int tokens_so_far = -1) {
  return {.at = At(ms), .text_bytes = bytes, .tokens_so_far = tokens_so_far};
}

Answer Of(std::vector<Chunk> chunks, std::optional<int64_t> tokens) {
  Answer answer;
  answer.chunks = std::move(chunks);
  answer.completion_tokens = tokens;
  return answer;
}

// What holds for every answer: one gap for each token after the first, adding up to the time from
// the first to the last.
void ExpectGapsAddUp(const TokenTiming& timing, const GapHistograms& gaps) {
  const Summary itl = gaps.tokens.Summarise();
  EXPECT_EQ(itl.count, static_cast<double>(timing.tokens - 1));
  EXPECT_NEAR(itl.mean * itl.count, absl::ToDoubleSeconds(*timing.last - *timing.first), 1e-9);
}

TEST(AccountTokensTest, OneTokenAPiece) {
  GapHistograms gaps;
  const TokenTiming timing =
      AccountTokens(Of({Piece(100, 1), Piece(110, 5), Piece(140, 2)}, 3), &gaps);
  EXPECT_EQ(timing.tokens, 3);
  EXPECT_TRUE(timing.from_usage);
  EXPECT_FALSE(timing.shared_out);
  EXPECT_EQ(timing.first, At(100));
  EXPECT_EQ(timing.last, At(140));
  EXPECT_NEAR(gaps.tokens.Summarise().max, 0.030, 1e-9);
  ExpectGapsAddUp(timing, gaps);
}

// A server that decodes speculatively: two, then three, then one.
TEST(AccountTokensTest, SeveralTokensAPieceAsTheRunningUsageSays) {
  GapHistograms gaps;
  const TokenTiming timing =
      AccountTokens(Of({Piece(0, 9, 2), Piece(60, 1, 5), Piece(80, 9, 6)}, 6), &gaps);
  EXPECT_FALSE(timing.shared_out);
  ExpectGapsAddUp(timing, gaps);
  // 0, then three of 20 ms, then one of 20 ms.
  EXPECT_EQ(gaps.tokens.Summarise().min, 0);
  EXPECT_NEAR(gaps.tokens.Summarise().p90, 0.020, 1e-4);
  EXPECT_EQ(gaps.pieces.count(), 2u);
  EXPECT_NEAR(gaps.pieces.Summarise().max, 0.060, 1e-9);
}

TEST(AccountTokensTest, WithoutARunningUsageTextTellsTheShare) {
  GapHistograms gaps;
  // Eight tokens in three pieces: one each, and of the five others 4 : 0 : 6 by bytes is 2 : 0 : 3.
  const TokenTiming timing =
      AccountTokens(Of({Piece(0, 40), Piece(10, 1), Piece(50, 60)}, 8), &gaps);
  EXPECT_TRUE(timing.shared_out);
  ExpectGapsAddUp(timing, gaps);
  EXPECT_NEAR(gaps.tokens.Quantile(1), 0.010, 1e-4) << "10 ms for one, 40 ms for four";
}

TEST(AccountTokensTest, AnEmptyLastPieceIsATokenOnlyWhereUsageSaysSo) {
  // Ended by length: the server sends finish_reason on its own.
  const TokenTiming by_length =
      AccountTokens(Of({Piece(0, 1), Piece(10, 1), Piece(30, 0)}, 2), nullptr);
  EXPECT_EQ(by_length.last, At(10));
  EXPECT_FALSE(by_length.shared_out);
  // Ended by an end-of-text token, which has no text.
  const TokenTiming by_eos =
      AccountTokens(Of({Piece(0, 1), Piece(10, 1), Piece(30, 0)}, 3), nullptr);
  EXPECT_EQ(by_eos.last, At(30));
  EXPECT_FALSE(by_eos.shared_out);
  // Nothing but the end: it is all there is to time.
  const TokenTiming only_end = AccountTokens(Of({Piece(40, 0)}, 1), nullptr);
  EXPECT_EQ(only_end.first, At(40));
}

TEST(AccountTokensTest, WithoutUsagePiecesCount) {
  const TokenTiming timing = AccountTokens(Of({Piece(0, 1), Piece(9, 3)}, std::nullopt), nullptr);
  EXPECT_EQ(timing.tokens, 2);
  EXPECT_FALSE(timing.from_usage);
}

TEST(AccountTokensTest, FewerTokensThanPieces) {
  GapHistograms gaps;
  const TokenTiming timing = AccountTokens(Of({Piece(0, 1), Piece(10, 1), Piece(20, 1)}, 2), &gaps);
  EXPECT_EQ(timing.tokens, 2);
  EXPECT_TRUE(timing.shared_out);
  EXPECT_EQ(timing.last, At(20));
}

TEST(AccountTokensTest, ARunningUsageThatFallsIsNotBelieved) {
  const TokenTiming timing = AccountTokens(Of({Piece(0, 1, 5), Piece(10, 1, 2)}, 2), nullptr);
  EXPECT_EQ(timing.tokens, 2);
  EXPECT_EQ(timing.first, At(0));
}

TEST(AccountTokensTest, NothingCame) {
  const TokenTiming timing = AccountTokens(Of({}, std::nullopt), nullptr);
  EXPECT_EQ(timing.tokens, 0);
  EXPECT_FALSE(timing.first.has_value());
}

}  // namespace
}  // namespace lynx::loadtest
