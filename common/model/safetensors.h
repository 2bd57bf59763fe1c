#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/tensor.h"

namespace lynx::model {

// The weights of a Hugging Face folder: model.safetensors.index.json and the shards it names, or
// model.safetensors alone. With an index, no other weight file is opened, whatever lies beside.
//
// Files are mapped read-only and stay mapped, so a tensor costs memory only where it is read, and
// nothing is copied unless a file leaves a tensor misaligned. Replace a model by a new folder,
// never by writing into a mapped file: a file cut short under a running process kills it (SIGBUS).
//
// Thread-safe once open.
class SafetensorsFolder {
 public:
  // Checks everything that headers and file sizes can tell.
  //   NotFound         no weights at all, or shards or indexed tensors are missing: lists them.
  //   DataLoss         files that are empty, cut short or no safetensors (such as a pointer file of
  //                    an unfinished download): lists them.
  //   InvalidArgument  an index or a header that contradicts itself or the format.
  //   Unimplemented    a tensor of a type we do not compute with.
  static absl::StatusOr<SafetensorsFolder> Open(const std::filesystem::path& model_dir);

  SafetensorsFolder(SafetensorsFolder&&) = default;
  SafetensorsFolder& operator=(SafetensorsFolder&&) = default;

  // By name; null if there is none.
  const Tensor* Find(const std::string& name) const;
  // Their data lies in the mappings of this folder.
  const TensorMap& tensors() const { return tensors_; }
  // Lets go of the memory of `data`, part of a tensor that was read and will not be soon. It can be
  // read all the same: from the file again.
  void Release(std::span<const std::byte> data) const;
  // Reads `data`, part of a tensor, from its file, of which nobody else may know whether it can be
  // read again: a mapping kills the process where it cannot.
  //   DataLoss  the file cannot be read, has become shorter or was written to; names it.
  absl::Status CheckReadable(std::span<const std::byte> data) const;
  // Weight files found in the folder and not used, by name.
  const std::vector<std::string>& unused_files() const { return unused_files_; }

 private:
  class Mapping;
  SafetensorsFolder();
  friend struct SafetensorsReader;

  TensorMap tensors_;
  std::vector<std::string> unused_files_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;  // Shared with nobody; hides the type.
  std::vector<std::unique_ptr<std::byte[]>> realigned_;   // Tensors that their file misaligns.
};

}  // namespace lynx::model
