#include "common/model/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::SafetensorsBytes;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The status of opening a folder whose only file has this header and `data` bytes behind it.
absl::Status OpenHeader(const std::string& header, size_t data) {
  TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(header, std::string(data, '\0')));
  return SafetensorsFolder::Open(dir.path()).status();
}

TEST(SafetensorsTest, ReadsNamesShapesAndBytes) {
  TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes({{"a", {DType::kF32, {2, 1}, {1.5f, -2.0f}}},
                                                   {"b", {DType::kBf16, {3}, {1.0f, 2.0f, 3.0f}}},
                                                   {"empty", {DType::kF16, {0, 4}, {}}}}));
  const auto folder = SafetensorsFolder::Open(dir.path());
  ASSERT_THAT(folder, IsOk());
  const Tensor* a = folder->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kF32);
  EXPECT_THAT(a->shape, ElementsAre(2, 1));
  float values[2];
  ASSERT_EQ(a->data.size(), sizeof(values));
  std::memcpy(values, a->data.data(), sizeof(values));
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f));
  EXPECT_EQ(folder->Find("b")->data.size(), 6u);
  EXPECT_TRUE(folder->Find("empty")->data.empty());
  EXPECT_EQ(folder->Find("c"), nullptr);
}

TEST(SafetensorsTest, MisalignedTensorsAreReadCorrectly) {
  TempDir dir;
  const std::string header =
      R"({"h":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"f":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  const float value = 1.25f;
  std::string data(6, '\0');
  std::memcpy(data.data() + 2, &value, 4);
  for (size_t padding = 0; padding < 4; ++padding) {
    dir.Write("model.safetensors", SafetensorsBytes(header + std::string(padding, ' '), data));
    const auto folder = SafetensorsFolder::Open(dir.path());
    ASSERT_THAT(folder, IsOk());
    EXPECT_EQ(*reinterpret_cast<const float*>(folder->Find("f")->data.data()), 1.25f);
  }
}

TEST(SafetensorsTest, ContradictoryHeadersAreRefused) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
           "}}";
  };
  EXPECT_THAT(OpenHeader(tensor("\"F32\"", "[2]", "[0,8]"), 8), IsOk());
  const std::string bad[] = {
      tensor("\"F32\"", "[2]", "[0,7]"),   // Size and shape disagree.
      tensor("\"F32\"", "[2]", "[8,0]"),   // Backwards.
      tensor("\"F32\"", "[2]", "[-8,0]"),  // Negative.
      tensor("\"F32\"", "[-2]", "[0,8]"),
      tensor("\"F32\"", "[2.0]", "[0,8]"),
      tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"),  // Overflows.
      tensor("\"F32\"", "[2]", "[0]"),
      tensor("\"F32\"", "2", "[0,8]"),
      tensor("7", "[2]", "[0,8]"),
      R"({"t":7})",
      R"({"t":{}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      tensor("\"F32\"", "[1]", "[0,4]"),  // Bytes left over.
      tensor("\"F32\"", "[1]", "[4,8]"),  // A hole before.
      R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      tensor("\"F32\"", "[2]", "[0,8]") + std::string(2, '\0'),
      "{",
      "{\"a\":" + std::string(100000, '[') + "}",
  };
  for (const std::string& header : bad) {
    EXPECT_THAT(OpenHeader(header, 8), StatusIs(absl::StatusCode::kInvalidArgument))
        << header.substr(0, 100);
  }
  EXPECT_THAT(OpenHeader(tensor("\"F8_E5M2\"", "[8]", "[0,8]"), 8),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("F8_E5M2")));
}

// The time limit of tests is what bounds it: quadratic work took minutes for as many.
TEST(SafetensorsTest, AHeaderOfManyTensorsIsReadInLinearTime) {
  const auto header = [](int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) {
      text += std::string(i == 0 ? "" : ",") + "\"t" + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    }
    return text + "}";
  };
  EXPECT_THAT(OpenHeader(header(100'000), 0), IsOk());
  EXPECT_THAT(OpenHeader(header((1 << 18) + 1), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("262145")));
}

// Opening a FIFO waits for a writer.
TEST(SafetensorsTest, WhatIsNoFileIsRefusedByNameAtOnce) {
  const auto put_fifo = [](const std::filesystem::path& path) {
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  };
  const auto put_directory = [](const std::filesystem::path& path) {
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
  };
  const auto put_dangling_link = [](const std::filesystem::path& path) {
    std::filesystem::remove(path);
    std::filesystem::create_symlink("nowhere", path);
  };
  const std::function<void(const std::filesystem::path&)> kinds[] = {put_fifo, put_directory,
                                                                     put_dangling_link};
  for (const auto& put : kinds) {
    for (const char* name : {"model.safetensors.index.json", "shard", "model.safetensors"}) {
      TempDir dir;
      if (std::string(name) != "model.safetensors") {
        dir.Write("model.safetensors.index.json", R"({"weight_map": {"a": "shard"}})");
      }
      put(dir.path() / name);
      EXPECT_THAT(SafetensorsFolder::Open(dir.path()),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
    }
  }
}

class ShardedTest : public ::testing::Test {
 protected:
  void SetUp() override { TinyModel::Make().WriteSharded(dir_.path(), 3); }
  std::filesystem::path Shard(int i) const { return dir_.path() / TinyModel::ShardName(i); }
  absl::Status Open() const { return SafetensorsFolder::Open(dir_.path()).status(); }
  TempDir dir_;
};

TEST_F(ShardedTest, OddlyNamedShardsAreFine) {
  const auto folder = SafetensorsFolder::Open(dir_.path());
  ASSERT_THAT(folder, IsOk());
  EXPECT_EQ(folder->tensors().size(), TinyModel::Make().tensors.size());
}

TEST_F(ShardedTest, MissingShardsAreListed) {
  std::filesystem::remove(Shard(1));
  std::filesystem::remove(Shard(2));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               AllOf(HasSubstr("part-1.weights"), HasSubstr("part-2.weights"),
                                     Not(HasSubstr("part-0")))));
}

TEST_F(ShardedTest, AShardCutAnywhereIsDataLoss) {
  const auto size = std::filesystem::file_size(Shard(2));
  for (const auto left :
       {size - 1, size / 2, uintmax_t{100}, uintmax_t{8}, uintmax_t{7}, uintmax_t{0}}) {
    std::filesystem::resize_file(Shard(2), left);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("part-2.weights"))) << left;
  }
}

TEST_F(ShardedTest, APointerFileIsDataLoss) {
  dir_.Write(TinyModel::ShardName(0),
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("part-0.weights")));
}

TEST_F(ShardedTest, ATensorAbsentFromItsShardIsNamed) {
  TinyModel model = TinyModel::Make();
  model.tensors.erase("model.norm.weight");
  TempDir other;
  model.WriteSharded(other.path(), 3);
  for (int i = 0; i < 3; ++i) {
    std::filesystem::copy_file(other.path() / TinyModel::ShardName(i), Shard(i),
                               std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.norm.weight")));
}

TEST_F(ShardedTest, OnlyIndexedFilesAreRead) {
  // A stray whole-model file of other values and type, and a stray of plain rubbish.
  dir_.Write("model.safetensors",
             SafetensorsBytes({{"model.norm.weight", {DType::kF32, {1}, {7}}}}));
  dir_.Write("model-00001-of-00002.safetensors", "rubbish");
  dir_.Write("original/part-0.weights", "rubbish");
  const auto folder = SafetensorsFolder::Open(dir_.path());
  ASSERT_THAT(folder, IsOk());
  EXPECT_EQ(folder->Find("model.norm.weight")->dtype, DType::kBf16);
  EXPECT_THAT(folder->unused_files(),
              ElementsAre("model-00001-of-00002.safetensors", "model.safetensors"));
}

TEST_F(ShardedTest, AnIndexMayNotLeaveTheFolder) {
  for (const char* name : {"../part-0.weights", "/etc/passwd", "", "..", "a/b"}) {
    dir_.Write("model.safetensors.index.json",
               nlohmann::json{{"weight_map", {{"model.norm.weight", name}}}}.dump());
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
  for (const char* text : {"", "[]", "{}", R"({"weight_map":7})", R"({"weight_map":{}})",
                           R"({"weight_map":{"a":7}})"}) {
    dir_.Write("model.safetensors.index.json", text);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(SafetensorsTest, AFolderWithoutWeightsIsNotFound) {
  TempDir dir;
  EXPECT_THAT(SafetensorsFolder::Open(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors")));
  std::filesystem::create_directory(dir.path() / "model.safetensors");
  EXPECT_THAT(SafetensorsFolder::Open(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lynx::model
