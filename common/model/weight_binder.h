#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/model/fp8_rows.h"
#include "common/model/mxfp4_rows.h"
#include "common/model/row_source.h"
#include "common/model/shard_plan.h"
#include "common/model/tensor.h"
#include "common/model/weight_packer.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/moe/expert_weights.h"

namespace lynx::model {

// Bytes that a kernel streams for it.
int64_t BytesOf(const kernels::Matrix& matrix);
int64_t BytesOf(const kernels::ExpertWeights& expert);

// Which rows and columns of a matrix are taken; all by default.
struct MatrixPart {
  int64_t first_row = 0;
  int64_t rows = -1;
  int64_t first_column = 0;
  int64_t columns = -1;

  // Of so many rows, or columns, each.
  static MatrixPart Rows(const ShardRange& range, int64_t each = 1) {
    return {.first_row = range.begin * each, .rows = range.size() * each};
  }
  static MatrixPart Columns(const ShardRange& range, int64_t each = 1) {
    return {.first_column = range.begin * each, .columns = range.size() * each};
  }
};

// Names of the three Linears of a gated MLP.
struct MlpNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

// How tensors differ from what a model needs.
struct WeightProblems {
  std::vector<std::string> missing;  // Names.
  std::vector<std::string> wrong;    // Name, what it is and what was wanted.
  std::vector<std::string> unknown;  // Names; they would change the answer if they mattered.

  // NotFound lists what is missing, InvalidArgument what is wrong or else unknown.
  absl::Status ToStatus() const;
};

// Takes tensors by name and shape and puts matrices to a packer, of a rank's shard what is the
// rank's. Sizes are always those of the whole model. What is wrong is collected, so that one start
// shows it all; what was taken is then empty.
class WeightBinder {
 public:
  // Blocks of one scale in matrices of e4m3; 0: there are no such matrices. The first two outlive
  // this.
  struct Fp8Block {
    int64_t rows = 0;
    int64_t width = 0;
  };
  WeightBinder(const TensorMap& tensors, WeightPacker& packer, Fp8Block fp8_block,
               const RankShard& shard)
      : tensors_(tensors), packer_(packer), fp8_block_(fp8_block), shard_(shard) {}

  const RankShard& shard() const { return shard_; }

  // From now on only the shard's experts of this layer are taken, everything else is passed by:
  // matrices and vectors come empty.
  void TakeOnlyExpertsOf(int32_t layer) { only_layer_ = layer; }
  bool Passes(int32_t layer) const { return only_layer_ >= 0 && layer != only_layer_; }

  // Names begin with it from now on, but for those that IgnorePrefix() takes.
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }

  bool Has(const std::string& name) const { return tensors_.count(prefix_ + name) > 0; }

  // The part of it, once its rows are as `arrange` puts them; null: as they are.
  kernels::Matrix TakeMatrix(const std::string& name, int64_t out, int64_t in,
                             const MatrixPart& part = {},
                             const std::function<RowSource(RowSource)>& arrange = nullptr);
  // One tensor [heads, first rows then second rows, in], of which the shard's query heads.
  struct SplitHeads {
    std::vector<kernels::Matrix> first_transposed;  // Of each head [in, first].
    std::vector<kernels::Matrix> second;            // Of each head [second, in].
  };
  SplitHeads TakeSplitHeads(const std::string& name, int64_t heads, int64_t first, int64_t second,
                            int64_t in);
  // In float32.
  std::vector<float> TakeVector(const std::string& name, int64_t size);
  // Of it `range`, of so many elements each.
  std::vector<float> TakeVectorPart(const std::string& name, int64_t size, const ShardRange& range,
                                    int64_t each = 1);
  // The same of [count, size], one after the other.
  std::vector<float> TakeVectors(const std::string& name, int64_t count, int64_t size);
  // `prefix` ends with a dot. Without `columns` of its `intermediate`, nothing is packed.
  kernels::ExpertWeights TakeMlp(const std::string& prefix, int64_t hidden, int64_t intermediate,
                                 const ShardRange& columns, const MlpNames& names = {});
  // All experts of a layer, of which the shard's, in two tensors: [experts, gate rows then up rows,
  // hidden] and [experts, hidden, intermediate].
  std::vector<kernels::ExpertWeights> TakeFusedMlps(const std::string& gate_up_name,
                                                    const std::string& down_name, int64_t experts,
                                                    int64_t hidden, int64_t intermediate);

  // The same of one MLP: [gate rows then up rows, hidden] and [hidden, intermediate].
  kernels::ExpertWeights TakeFusedMlp(const std::string& gate_up_name, const std::string& down_name,
                                      int64_t hidden, int64_t intermediate,
                                      const ShardRange& columns);

  // The shard's experts of a layer by inputs: [experts, hidden, 2 * intermediate], the gate's
  // columns before those of up or, interleaved, in turns with them; and [experts, intermediate,
  // hidden].
  std::vector<kernels::ExpertWeights> TakeTransposedMlps(const std::string& gate_up_name,
                                                         const std::string& down_name,
                                                         int64_t experts, int64_t hidden,
                                                         int64_t intermediate, bool interleaved);

  // The shard's experts of a layer in MXFP4, of each product its <name>_blocks of codes and its
  // <name>_scales: rows of gate and up in turns [experts, 2 * intermediate, hidden], and [experts,
  // hidden, intermediate].
  std::vector<kernels::ExpertWeights> TakeMxfp4Mlps(const std::string& gate_up_name,
                                                    const std::string& down_name, int64_t experts,
                                                    int64_t hidden, int64_t intermediate);

  // A tensor that may be there and is not used; or all whose names begin so.
  void Ignore(const std::string& name) { ignored_.insert(prefix_ + name); }
  void IgnorePrefix(const std::string& prefix);
  void Refuse(std::string what) { wrong_.push_back(std::move(what)); }

  WeightProblems Problems() const;
  // Tensors that are there and were ignored.
  std::vector<std::string> Ignored() const;
  // Of what TakeVector() and TakeVectors() returned.
  int64_t vector_bytes() const { return vector_bytes_; }
  // By name, in what shape.
  const std::map<std::string, std::vector<int64_t>>& missing() const { return missing_; }

 private:
  // A matrix in the checkpoint, and its scales if it is of e4m3.
  struct Stored {
    const Tensor* tensor = nullptr;
    const Tensor* scales = nullptr;
  };
  // Of any coding; of one; and plain.
  const Tensor* TakeAny(const std::string& name, const std::vector<int64_t>& shape);
  const Tensor* TakeCoded(const std::string& name, const std::vector<int64_t>& shape,
                          Coding coding);
  const Tensor* Take(const std::string& name, const std::vector<int64_t>& shape);
  std::vector<float> TakeFloats(const std::string& name, const std::vector<int64_t>& shape);
  bool IsIgnored(const std::string& name) const;
  // Matrices [rows, width] one after the other.
  std::optional<Mxfp4Matrix> TakeMxfp4(const std::string& name, int64_t matrices, int64_t rows,
                                       int64_t width);
  void RefuseType(const std::string& name, const Tensor& tensor, std::string_view wanted);
  // Whether a tensor is there that cannot be, and is refused.
  bool RefusedThere(const std::string& name, std::string_view why);
  std::optional<Stored> TakeStored(const std::string& name, int64_t out, int64_t in);
  Fp8Matrix Fp8Of(const Stored& stored) const;
  // `count` rows from `first` on; and transposed.
  RowSource Rows(const Stored& stored, int64_t first, int64_t count) const;
  RowSource Columns(const Stored& stored, int64_t first, int64_t count) const;
  // MLP `index` of the tensors' stack.
  kernels::ExpertWeights AddFusedMlp(const Tensor& gate_up, const Tensor& down, int64_t index,
                                     int64_t hidden, int64_t intermediate,
                                     const ShardRange& columns);
  kernels::ExpertWeights AddMlp(RowSource gate, RowSource up, RowSource down,
                                const ShardRange& columns);

  const TensorMap& tensors_;
  WeightPacker& packer_;
  const Fp8Block fp8_block_;
  const RankShard shard_;
  int32_t only_layer_ = -1;
  std::string prefix_;
  std::set<std::string> taken_;
  std::set<std::string> ignored_;
  int64_t vector_bytes_ = 0;
  std::map<std::string, std::vector<int64_t>> missing_;
  std::vector<std::string> wrong_;
};

}  // namespace lynx::model
