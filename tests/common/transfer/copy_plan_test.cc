#include "common/transfer/copy_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "common/transfer/checksum.h"
#include "common/transfer/handshake.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::transfer {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const kv::KvLayout kLayout = {.layers = 4, .kv_heads = 2, .head_dim = 64, .dtype = DType::kBf16};

const kv::KvLayout kLatents = {
    .kind = kv::KvKind::kLatent, .layers = 4, .kv_heads = 1, .head_dim = 72, .dtype = DType::kBf16};

proto::LayoutDescriptor Descriptor() { return DescribeLayout(kLayout, 2, 1, 0, 0); }

TEST(CopyPlanTest, EqualLayoutsCopyTheBlockAsItIs) {
  auto plan = PlanCopy(Descriptor(), Descriptor());
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->block_bytes, kLayout.BlockLayerBytes());
  EXPECT_EQ(plan->to_head, 0);
  EXPECT_EQ(plan->heads, 2);
  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0], (CopySlice{0, 0, kLayout.BlockLayerBytes()}));
}

TEST(CopyPlanTest, TwoRanksCopyTheHeadsThatBothHold) {
  kv::KvLayout all = kLayout;
  all.kv_heads = 4;
  const auto rank1 = DescribeLayout(kLayout, 4, 2, 1, 2);
  auto same = PlanCopy(rank1, rank1);
  ASSERT_THAT(same, IsOk());
  EXPECT_EQ(same->block_bytes, kLayout.BlockLayerBytes());
  auto none = PlanCopy(DescribeLayout(kLayout, 4, 2, 0, 0), rank1);
  ASSERT_THAT(none, IsOk());
  EXPECT_THAT(none->slices, IsEmpty());
  // K and V of heads 2 and 3 of four.
  const int64_t half = kLayout.BlockLayerBytes() / 2;
  auto into = PlanCopy(rank1, DescribeLayout(all, 4, 1, 0, 0));
  ASSERT_THAT(into, IsOk());
  EXPECT_EQ(into->block_bytes, 2 * half);
  EXPECT_EQ(into->to_head, 2);
  EXPECT_EQ(into->heads, 2);
  EXPECT_THAT(into->slices, ElementsAre(CopySlice{0, half, half}, CopySlice{half, 3 * half, half}));
  auto out_of = PlanCopy(DescribeLayout(all, 4, 1, 0, 0), rank1);
  ASSERT_THAT(out_of, IsOk());
  EXPECT_EQ(out_of->to_head, 0);
  EXPECT_THAT(out_of->slices,
              ElementsAre(CopySlice{half, 0, half}, CopySlice{3 * half, half, half}));
}

// Every head of every receiver has one sender, of those that hold it a different one for each copy.
TEST(CopyPlanTest, OneRankSendsAHeadThatSeveralHold) {
  kv::KvLayout one = kLayout;
  one.kv_heads = 1;
  const auto rank_of = [&](int32_t tp, int32_t rank) {
    return tp == 1 ? DescribeLayout(kLayout, 2, 1, 0, 0)
                   : DescribeLayout(one, 2, tp, rank, rank / (tp / 2));
  };
  for (const int32_t from : {1, 2, 4, 8}) {
    for (const int32_t to : {1, 2, 4, 8}) {
      std::vector<int> sends(static_cast<size_t>(from));
      for (int32_t receiver = 0; receiver < to; ++receiver) {
        int32_t heads = 0;
        for (int32_t sender = 0; sender < from; ++sender) {
          auto plan = PlanCopy(rank_of(from, sender), rank_of(to, receiver));
          ASSERT_THAT(plan, IsOk());
          heads += plan->heads;
          sends[static_cast<size_t>(sender)] += plan->slices.empty() ? 0 : 1;
        }
        EXPECT_EQ(heads, to == 1 ? 2 : 1) << from << " to " << to << " rank " << receiver;
      }
      if (to < from) continue;
      EXPECT_EQ(*std::ranges::min_element(sends), *std::ranges::max_element(sends));
    }
  }
}

TEST(CopyPlanTest, LatentsAreCopiedWhole) {
  const auto latents = DescribeLayout(kLatents, 1, 1, 0, 0);
  auto plan = PlanCopy(latents, latents);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->block_bytes, 16 * 72 * 2);
  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0], (CopySlice{0, 0, kLatents.BlockLayerBytes()}));
  auto two = latents;
  two.set_kv_heads_total(2);
  EXPECT_THAT(PlanCopy(two, two), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CopyPlanTest, AnotherKindIsRefusedNamingBothLayouts) {
  const auto latents = DescribeLayout(kLatents, 1, 1, 0, 0);
  EXPECT_THAT(PlanCopy(Descriptor(), latents),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("sender has K and V of 2 heads of 64"),
                             HasSubstr("receiver has latents of 72"))));
}

TEST(CopyPlanTest, LayersThatKeepOtherTokensAreRefusedNamingBoth) {
  const auto with = [](std::vector<kv::Reach> reaches) {
    kv::KvLayout layout = kLayout;
    layout.groups = kv::KvGroups(reaches);
    return DescribeLayout(layout, 2, 1, 0, 0);
  };
  const auto windows = with({{}, {.window = 8}, {}, {.window = 8}});
  EXPECT_THAT(PlanCopy(windows, windows), IsOk());
  EXPECT_THAT(PlanCopy(with({{}, {}, {}, {}}), Descriptor()), IsOk());
  EXPECT_THAT(PlanCopy(windows, Descriptor()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("2 layers keep a window of 8, 2 all tokens"),
                             HasSubstr("receiver has all tokens (4 layers keep all tokens)"))));
  EXPECT_THAT(PlanCopy(windows, with({{.window = 8}, {}, {.window = 8}, {}})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in layer 0")));
  EXPECT_THAT(PlanCopy(windows, with({{}, {.chunk = 8}, {}, {.window = 8}})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("chunks of 8")));
}

TEST(CopyPlanTest, DescriptorsThatContradictThemselvesAreInvalid) {
  using Change = void (*)(proto::LayoutDescriptor&);
  const Change changes[] = {
      [](auto& d) { d.set_kind(proto::LayoutDescriptor::KIND_UNSPECIFIED); },
      [](auto& d) { d.set_layers(0); },
      [](auto& d) { d.set_layers(1 << 30); },
      [](auto& d) { d.set_head_dim(-64); },
      [](auto& d) { d.set_tp_rank(1); },
      [](auto& d) { d.set_head_begin(-1); },
      [](auto& d) { d.set_head_end(0); },
      [](auto& d) { d.set_head_end(3); },
      [](auto& d) { d.set_dtype("f8"); },
      [](auto& d) { d.add_reach(); },  // Of one layer of four.
      [](auto& d) {
        for (int i = 0; i < 4; ++i) d.add_reach()->set_window(-1);
      },
      [](auto& d) {
        for (int i = 0; i < 4; ++i) d.add_reach()->set_chunk(-1);
      },
      [](auto& d) { d.Clear(); },
  };
  for (Change change : changes) {
    proto::LayoutDescriptor bad = Descriptor();
    change(bad);
    SCOPED_TRACE(bad.ShortDebugString());
    EXPECT_THAT(PlanCopy(bad, Descriptor()), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(PlanCopy(Descriptor(), bad), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(HandshakeTest, AnotherVersionIsRefusedNamingBoth) {
  const NodeIdentity self = {7, "hash", "class", Descriptor()};
  proto::TransferHeader header = MakeHeader(9, 7);
  *header.mutable_handshake() = MakeHandshake(self);
  EXPECT_THAT(CheckHandshake(self, header), IsOk());
  header.set_version(99);
  EXPECT_THAT(CheckHandshake(self, header), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                     AllOf(HasSubstr("99"), HasSubstr("1"))));
}

TEST(HandshakeTest, RanksThatShareNothingAreRefusedNamingBoth) {
  const NodeIdentity receiver = {7, "hash", "class", DescribeLayout(kLayout, 4, 2, 1, 2)};
  const NodeIdentity sender = {9, "hash", "class", DescribeLayout(kLayout, 4, 2, 0, 0)};
  proto::TransferHeader header = MakeHeader(9, 7);
  *header.mutable_handshake() = MakeHandshake(sender);
  EXPECT_THAT(CheckHandshake(receiver, header),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 of 2 with heads 0..2"),
                             HasSubstr("rank 1 of 2 with heads 2..4"))));
}

TEST(HandshakeTest, ASenderThatKnowsNothingOfRanksIsRefusedByThem) {
  kv::KvLayout whole = kLayout;
  whole.kv_heads = 4;
  const NodeIdentity sender = {9, "hash", "class", DescribeLayout(whole, 4, 1, 0, 0)};
  proto::TransferHeader header = MakeHeader(9, 7);
  *header.mutable_handshake() = MakeHandshake(sender);
  header.mutable_handshake()->clear_by_rank();
  EXPECT_THAT(CheckHandshake({7, "hash", "class", sender.layout}, header), IsOk());
  EXPECT_THAT(CheckHandshake({7, "hash", "class", DescribeLayout(kLayout, 4, 2, 0, 0)}, header),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("knows nothing of nodes")));
}

TEST(HandshakeTest, AFormerIncarnationIsUnavailable) {
  const NodeIdentity self = {7, "hash", "class", Descriptor()};
  proto::TransferHeader header = MakeHeader(9, 6);
  *header.mutable_handshake() = MakeHandshake(self);
  EXPECT_THAT(CheckHandshake(self, header), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(HandshakeTest, PatternsOfTwoSendersDiffer) {
  EXPECT_THAT(SelfTestPattern(1), SizeIs(kPatternBytes));
  EXPECT_NE(Checksum(SelfTestPattern(1)), Checksum(SelfTestPattern(2)));
}

TEST(HandshakeTest, ReplyMessagesAreBoundedAndValidText) {
  std::string long_text(1023, 'x');
  long_text += "\xc3\xa9\xff";
  const std::string text = ReplyMessage(absl::InternalError(long_text));
  EXPECT_EQ(text, std::string(1023, 'x'));
  EXPECT_EQ(StatusFromReply(0, "no").code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(StatusFromReply(4711, "no").code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(StatusFromReply(14, "no").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lynx::transfer
