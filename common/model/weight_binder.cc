#include "common/model/weight_binder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/name_list.h"
#include "kernels/core/float_convert.h"

namespace lynx::model {
namespace {

using kernels::ExpertWeights;
using kernels::Matrix;

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// For a message.
std::string Where(const std::string& name, const Tensor& tensor) {
  return tensor.file.empty() ? name : absl::StrCat(tensor.file, ": ", name);
}

Mxfp4Matrix PartOf(const Mxfp4Matrix& all, int64_t index, int64_t count) {
  const auto part = [&](std::span<const std::byte> data) {
    const size_t size = data.size() / static_cast<size_t>(count);
    return data.subspan(static_cast<size_t>(index) * size, size);
  };
  return {.codes = part(all.codes), .scales = part(all.scales), .width = all.width};
}

std::vector<float> InFloat(const Tensor& tensor) {
  std::vector<float> values(tensor.data.size() / SizeOf(tensor.dtype));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(tensor.data.data());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        tensor.dtype == DType::kBf16 ? kernels::Bf16ToF32(halves[i]) : kernels::F16ToF32(halves[i]);
  }
  return values;
}

}  // namespace

int64_t BytesOf(const Matrix& matrix) {
  return kernels::PackedBytes(matrix.out, matrix.in, matrix.dtype);
}

int64_t BytesOf(const ExpertWeights& expert) {
  return BytesOf(expert.gate_up) + BytesOf(expert.down);
}

// Null when absent or of the wrong shape.
const Tensor* WeightBinder::TakeAny(const std::string& short_name,
                                    const std::vector<int64_t>& shape) {
  const std::string name = prefix_ + short_name;
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    missing_.emplace(name, shape);
    return nullptr;
  }
  taken_.insert(name);
  const Tensor& tensor = it->second;
  if (tensor.shape != shape) {
    wrong_.push_back(absl::StrCat(Where(name, tensor), " is ", ShapeText(tensor.shape), ", wanted ",
                                  ShapeText(shape)));
    return nullptr;
  }
  size_t bytes = ElementBytes(tensor);
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  if (tensor.data.size() != bytes) {
    wrong_.push_back(absl::StrCat(Where(name, tensor), " ", ShapeText(shape), " has ",
                                  tensor.data.size(), " bytes of ", bytes));
    return nullptr;
  }
  return &tensor;
}

const Tensor* WeightBinder::TakeCoded(const std::string& name, const std::vector<int64_t>& shape,
                                      Coding coding) {
  const Tensor* tensor = TakeAny(name, shape);
  if (tensor == nullptr || tensor->coding == coding) return tensor;
  RefuseType(name, *tensor, coding == Coding::kBytes ? "u8" : "f32, bf16 or f16");
  return nullptr;
}

const Tensor* WeightBinder::Take(const std::string& name, const std::vector<int64_t>& shape) {
  return TakeCoded(name, shape, Coding::kPlain);
}

void WeightBinder::RefuseType(const std::string& name, const Tensor& tensor,
                              std::string_view wanted) {
  Refuse(absl::StrCat(Where(prefix_ + name, tensor), " is ", std::string(TypeName(tensor)),
                      ", wanted ", std::string(wanted)));
}

bool WeightBinder::RefusedThere(const std::string& short_name, std::string_view why) {
  const std::string name = prefix_ + short_name;
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return false;
  taken_.insert(name);
  Refuse(absl::StrCat(Where(name, it->second), " is there, and ", std::string(why)));
  return true;
}

std::optional<Mxfp4Matrix> WeightBinder::TakeMxfp4(const std::string& name, int64_t matrices,
                                                   int64_t rows, int64_t width) {
  if (RefusedThere(name, "quant_method mxfp4 wants its _blocks and _scales instead")) {
    return std::nullopt;
  }
  const std::string codes_name = name + "_blocks";
  const std::string scales_name = name + "_scales";
  if (width % kMxfp4Block != 0) {
    Refuse(absl::StrCat(prefix_, codes_name, " would have rows of ", width, ", and blocks of ",
                        kMxfp4Block, " do not fill them"));
    return std::nullopt;
  }
  const int64_t blocks = width / kMxfp4Block;
  const Tensor* codes =
      TakeCoded(codes_name, {matrices, rows, blocks, kMxfp4Block / 2}, Coding::kBytes);
  const Tensor* scales = TakeCoded(scales_name, {matrices, rows, blocks}, Coding::kBytes);
  if (codes == nullptr || scales == nullptr) return std::nullopt;
  uint8_t largest = 0;
  if (packer_.only_counts()) {  // The calls with memory follow once nothing was refused.
    for (std::byte scale : scales->data) largest = std::max(largest, static_cast<uint8_t>(scale));
  }
  if (largest > kMaxMxfp4Scale) {
    Refuse(absl::StrCat(Where(prefix_ + scales_name, *scales), " has a scale of ", int{largest},
                        largest == 255 ? ", which is no number" : "", "; the largest served is ",
                        kMaxMxfp4Scale));
    return std::nullopt;
  }
  return Mxfp4Matrix{.codes = codes->data, .scales = scales->data, .width = width};
}

std::optional<WeightBinder::Stored> WeightBinder::TakeStored(const std::string& name, int64_t out,
                                                             int64_t in) {
  const Tensor* tensor = TakeAny(name, {out, in});
  if (tensor == nullptr) return std::nullopt;
  if (tensor->coding == Coding::kPlain) return Stored{.tensor = tensor};
  if (tensor->coding != Coding::kE4m3) {
    RefuseType(name, *tensor, "f32, bf16, f16 or f8_e4m3");
    return std::nullopt;
  }
  if (fp8_block_.rows == 0) {
    Refuse(absl::StrCat(Where(prefix_ + name, *tensor), " is ", std::string(TypeName(*tensor)),
                        " without a quantization_config"));
    return std::nullopt;
  }
  const std::string scales_name = name + "_scale_inv";
  const Tensor* scales = Take(scales_name, {(out + fp8_block_.rows - 1) / fp8_block_.rows,
                                            (in + fp8_block_.width - 1) / fp8_block_.width});
  if (scales == nullptr) return std::nullopt;
  if (scales->dtype != DType::kF32) {
    RefuseType(scales_name, *scales, "f32");
    return std::nullopt;
  }
  return Stored{.tensor = tensor, .scales = scales};
}

RowSource WeightBinder::Rows(const Stored& stored, int64_t first, int64_t count) const {
  const Tensor& tensor = *stored.tensor;
  const int64_t width = tensor.shape.back();
  if (stored.scales != nullptr) return Fp8Rows(Fp8Of(stored), first, count);
  return PlainRows(tensor.data.data() + first * width * static_cast<int64_t>(SizeOf(tensor.dtype)),
                   tensor.dtype, count, width);
}

RowSource WeightBinder::Columns(const Stored& stored, int64_t first, int64_t count) const {
  const Tensor& tensor = *stored.tensor;
  const int64_t width = tensor.shape.back();
  if (stored.scales != nullptr) return Fp8Columns(Fp8Of(stored), first, count);
  const auto row_bytes = static_cast<size_t>(width) * SizeOf(tensor.dtype);
  const std::span<const std::byte> part = tensor.data.subspan(
      static_cast<size_t>(first) * row_bytes, static_cast<size_t>(count) * row_bytes);
  return StridedRows(part.data(), tensor.dtype, width, count, /*row_stride=*/1,
                     /*column_stride=*/width, part);
}

Fp8Matrix WeightBinder::Fp8Of(const Stored& stored) const {
  return {.values = stored.tensor->data,
          .scales = reinterpret_cast<const float*>(stored.scales->data.data()),
          .width = stored.tensor->shape.back(),
          .block_rows = fp8_block_.rows,
          .block_width = fp8_block_.width};
}

Matrix WeightBinder::TakeMatrix(const std::string& name, int64_t out, int64_t in,
                                const MatrixPart& part,
                                const std::function<RowSource(RowSource)>& arrange) {
  if (only_layer_ >= 0) return {};
  const std::optional<Stored> stored = TakeStored(name, out, in);
  if (!stored.has_value()) return {};
  RowSource rows = Rows(*stored, 0, out);
  if (arrange) rows = arrange(std::move(rows));
  if (part.rows >= 0) rows = RowRange(std::move(rows), part.first_row, part.rows);
  if (part.columns >= 0) rows = ColumnRange(std::move(rows), part.first_column, part.columns);
  return packer_.Add(std::move(rows));
}

WeightBinder::SplitHeads WeightBinder::TakeSplitHeads(const std::string& name, int64_t heads,
                                                      int64_t first, int64_t second, int64_t in) {
  if (only_layer_ >= 0) return {};
  const std::optional<Stored> stored = TakeStored(name, heads * (first + second), in);
  if (!stored.has_value()) return {};
  SplitHeads split;
  for (int64_t h = shard_.query_heads.begin; h < shard_.query_heads.end; ++h) {
    const int64_t row = h * (first + second);
    split.first_transposed.push_back(packer_.Add(Columns(*stored, row, first)));
    split.second.push_back(packer_.Add(Rows(*stored, row + first, second)));
  }
  return split;
}

std::vector<float> WeightBinder::TakeFloats(const std::string& name,
                                            const std::vector<int64_t>& shape) {
  if (only_layer_ >= 0) return {};
  const Tensor* tensor = Take(name, shape);
  if (tensor == nullptr) return {};
  std::vector<float> values = InFloat(*tensor);
  vector_bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
  return values;
}

std::vector<float> WeightBinder::TakeVector(const std::string& name, int64_t size) {
  return TakeFloats(name, {size});
}

std::vector<float> WeightBinder::TakeVectorPart(const std::string& name, int64_t size,
                                                const ShardRange& range, int64_t each) {
  const std::vector<float> all = TakeVector(name, size);
  if (all.empty()) return all;
  return {all.begin() + range.begin * each, all.begin() + range.end * each};
}

std::vector<float> WeightBinder::TakeVectors(const std::string& name, int64_t count, int64_t size) {
  return TakeFloats(name, {count, size});
}

ExpertWeights WeightBinder::AddMlp(RowSource gate, RowSource up, RowSource down,
                                   const ShardRange& columns) {
  return {.gate_up = packer_.AddGateUp(RowRange(std::move(gate), columns.begin, columns.size()),
                                       RowRange(std::move(up), columns.begin, columns.size())),
          .down = packer_.Add(ColumnRange(std::move(down), columns.begin, columns.size()))};
}

ExpertWeights WeightBinder::TakeMlp(const std::string& prefix, int64_t hidden, int64_t intermediate,
                                    const ShardRange& columns, const MlpNames& names) {
  const std::string gate_name = absl::StrCat(prefix, names.gate, ".weight");
  const std::string up_name = absl::StrCat(prefix, names.up, ".weight");
  const std::optional<Stored> gate = TakeStored(gate_name, intermediate, hidden);
  const std::optional<Stored> up = TakeStored(up_name, intermediate, hidden);
  const std::optional<Stored> down =
      TakeStored(absl::StrCat(prefix, names.down, ".weight"), hidden, intermediate);
  if (!gate.has_value() || !up.has_value() || !down.has_value()) return {};
  if (gate->tensor->dtype != up->tensor->dtype) {
    Refuse(absl::StrCat(gate_name, " is ", std::string(TypeName(*gate->tensor)), ", ", up_name, " ",
                        std::string(TypeName(*up->tensor))));
    return {};
  }
  if (columns.size() == 0) return {};
  return AddMlp(Rows(*gate, 0, intermediate), Rows(*up, 0, intermediate), Rows(*down, 0, hidden),
                columns);
}

std::vector<ExpertWeights> WeightBinder::TakeFusedMlps(const std::string& gate_up_name,
                                                       const std::string& down_name,
                                                       int64_t experts, int64_t hidden,
                                                       int64_t intermediate) {
  const Tensor* gate_up = Take(gate_up_name, {experts, 2 * intermediate, hidden});
  const Tensor* down = Take(down_name, {experts, hidden, intermediate});
  if (gate_up == nullptr || down == nullptr) return {};
  std::vector<ExpertWeights> all;
  for (const int64_t e : shard_.experts) {
    all.push_back(AddFusedMlp(*gate_up, *down, e, hidden, intermediate, shard_.expert_columns));
  }
  return all;
}

ExpertWeights WeightBinder::TakeFusedMlp(const std::string& gate_up_name,
                                         const std::string& down_name, int64_t hidden,
                                         int64_t intermediate, const ShardRange& columns) {
  const Tensor* gate_up = Take(gate_up_name, {2 * intermediate, hidden});
  const Tensor* down = Take(down_name, {hidden, intermediate});
  if (gate_up == nullptr || down == nullptr || columns.size() == 0) return {};
  return AddFusedMlp(*gate_up, *down, 0, hidden, intermediate, columns);
}

ExpertWeights WeightBinder::AddFusedMlp(const Tensor& gate_up, const Tensor& down, int64_t index,
                                        int64_t hidden, int64_t intermediate,
                                        const ShardRange& columns) {
  auto part = [&](const Tensor& tensor, int64_t third) {
    return tensor.data.data() +
           third * intermediate * hidden * static_cast<int64_t>(SizeOf(tensor.dtype));
  };
  return AddMlp(PlainRows(part(gate_up, 2 * index), gate_up.dtype, intermediate, hidden),
                PlainRows(part(gate_up, 2 * index + 1), gate_up.dtype, intermediate, hidden),
                PlainRows(part(down, index), down.dtype, hidden, intermediate), columns);
}

std::vector<ExpertWeights> WeightBinder::TakeTransposedMlps(const std::string& gate_up_name,
                                                            const std::string& down_name,
                                                            int64_t experts, int64_t hidden,
                                                            int64_t intermediate,
                                                            bool interleaved) {
  const int64_t width = 2 * intermediate;
  constexpr char kNotQuantised[] = "config.json has no quantization_config of quant_method mxfp4";
  const bool blocks = RefusedThere(gate_up_name + "_blocks", kNotQuantised);
  if (RefusedThere(down_name + "_blocks", kNotQuantised) || blocks) return {};
  const Tensor* gate_up = Take(gate_up_name, {experts, hidden, width});
  const Tensor* down = Take(down_name, {experts, intermediate, hidden});
  if (gate_up == nullptr || down == nullptr) return {};
  std::vector<ExpertWeights> all;
  for (const int64_t e : shard_.experts) {
    const auto part = [e, experts](const Tensor& tensor) {
      const size_t bytes = tensor.data.size() / static_cast<size_t>(experts);
      return tensor.data.subspan(static_cast<size_t>(e) * bytes, bytes);
    };
    const auto columns = [&](int64_t first) {
      const std::span<const std::byte> memory = part(*gate_up);
      return StridedRows(memory.data() + first * static_cast<int64_t>(SizeOf(gate_up->dtype)),
                         gate_up->dtype, intermediate, hidden, interleaved ? 2 : 1, width, memory);
    };
    const std::span<const std::byte> down_part = part(*down);
    all.push_back(AddMlp(
        columns(0), columns(interleaved ? 1 : intermediate),
        StridedRows(down_part.data(), down->dtype, hidden, intermediate, 1, hidden, down_part),
        shard_.expert_columns));
  }
  return all;
}

std::vector<ExpertWeights> WeightBinder::TakeMxfp4Mlps(const std::string& gate_up_name,
                                                       const std::string& down_name,
                                                       int64_t experts, int64_t hidden,
                                                       int64_t intermediate) {
  const std::optional<Mxfp4Matrix> gate_up =
      TakeMxfp4(gate_up_name, experts, 2 * intermediate, hidden);
  const std::optional<Mxfp4Matrix> down = TakeMxfp4(down_name, experts, hidden, intermediate);
  if (!gate_up.has_value() || !down.has_value()) return {};
  std::vector<ExpertWeights> all;
  for (const int64_t e : shard_.experts) {
    const Mxfp4Matrix both = PartOf(*gate_up, e, experts);
    all.push_back(AddMlp(Mxfp4Rows(both, 0, 2, intermediate), Mxfp4Rows(both, 1, 2, intermediate),
                         Mxfp4Rows(PartOf(*down, e, experts), 0, 1, hidden),
                         shard_.expert_columns));
  }
  return all;
}

void WeightBinder::IgnorePrefix(const std::string& prefix) {
  for (auto it = tensors_.lower_bound(prefix);
       it != tensors_.end() && absl::StartsWith(it->first, prefix); ++it) {
    ignored_.insert(it->first);
  }
}

WeightProblems WeightBinder::Problems() const {
  WeightProblems problems;
  for (const auto& [name, shape] : missing_) problems.missing.push_back(name);
  problems.wrong = wrong_;
  for (const auto& [name, tensor] : tensors_) {
    if (taken_.count(name) == 0 && !IsIgnored(name)) problems.unknown.push_back(name);
  }
  return problems;
}

std::vector<std::string> WeightBinder::Ignored() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (IsIgnored(name)) names.push_back(name);
  }
  return names;
}

bool WeightBinder::IsIgnored(const std::string& name) const {
  // Old exports carry the frequencies of RoPE, which follow from the config.
  return ignored_.count(name) > 0 || absl::EndsWith(name, ".rotary_emb.inv_freq");
}

absl::Status WeightProblems::ToStatus() const {
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(missing.size(), " tensors missing from the weights: ", NameList(missing)));
  }
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensors disagree with config.json: ", NameList(wrong)));
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        unknown.size(), " tensors belong to no part of this model: ", NameList(unknown)));
  }
  return absl::OkStatus();
}

}  // namespace lynx::model
