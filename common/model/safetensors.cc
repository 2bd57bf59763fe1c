#include "common/model/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/model/json_file.h"
#include "common/model/name_list.h"

namespace lynx::model {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The format's own bound.
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxTensors = 1 << 18;  // In a file or index; the largest models have 10^5.

// A tensor of that type, still without a shape.
std::optional<Tensor> TensorOfType(const std::string& name) {
  if (name == "F32") return Tensor{.dtype = DType::kF32};
  if (name == "BF16") return Tensor{.dtype = DType::kBf16};
  if (name == "F16") return Tensor{.dtype = DType::kF16};
  if (name == "F8_E4M3") return Tensor{.dtype = DType::kBf16, .coding = Coding::kE4m3};
  if (name == "U8") return Tensor{.dtype = DType::kBf16, .coding = Coding::kBytes};
  return std::nullopt;
}

// What a header says of one tensor.
struct Entry {
  std::string name;
  Tensor tensor;  // Without data.
  uint64_t begin = 0;
  uint64_t end = 0;
};

absl::StatusOr<Entry> ParseEntry(const std::string& name, const json& value,
                                 const std::string& file) {
  auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": tensor '", Shortened(name), "': ", std::string(what)));
  };
  Entry entry;
  entry.name = name;
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string()) {
    return wrong("has no dtype");
  }
  const std::string dtype = value["dtype"].get<std::string>();
  std::optional<Tensor> tensor = TensorOfType(dtype);
  if (!tensor.has_value()) {
    return absl::UnimplementedError(absl::StrCat(file, ": tensor '", Shortened(name),
                                                 "' is of type ", Shortened(dtype),
                                                 "; F32, BF16, F16, F8_E4M3 and U8 are served"));
  }
  entry.tensor = *std::move(tensor);
  if (!value.contains("shape") || !value["shape"].is_array()) return wrong("has no shape");
  uint64_t bytes = ElementBytes(entry.tensor);
  for (const json& size : value["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{1} << 40) {
      return wrong("shape holds something that is no size");
    }
    if (__builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes)) {
      return wrong("shape is too large");
    }
    entry.tensor.shape.push_back(size.get<int64_t>());
  }
  if (!value.contains("data_offsets") || !value["data_offsets"].is_array() ||
      value["data_offsets"].size() != 2 || !value["data_offsets"][0].is_number_unsigned() ||
      !value["data_offsets"][1].is_number_unsigned()) {
    return wrong("data_offsets is not a pair of offsets");
  }
  entry.begin = value["data_offsets"][0].get<uint64_t>();
  entry.end = value["data_offsets"][1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    return wrong(absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, ") do not hold the ",
                              bytes, " bytes of its shape and type"));
  }
  return entry;
}

absl::Status CheckCount(size_t tensors, const std::string& file) {
  if (tensors <= kMaxTensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": has ", tensors, " tensors; at most ", kMaxTensors, " are served"));
}

}  // namespace

// A whole file, mapped read-only.
class SafetensorsFolder::Mapping {
 public:
  Mapping(void* base, size_t size, std::string path, RegularFile file)
      : base_(base), size_(size), path_(std::move(path)), file_(std::move(file)) {
    fstat(file_.fd(), &opened_);
  }
  ~Mapping() { munmap(base_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(base_), size_}; }
  bool Holds(std::span<const std::byte> data) const {
    return data.data() >= bytes().data() && data.data() + data.size() <= bytes().data() + size_;
  }

  // Of what it holds.
  absl::Status CheckReadable(std::span<const std::byte> data) const {
    const auto lost = [this](std::string_view why) {
      return absl::DataLossError(absl::StrCat(path_, ": ", std::string(why)));
    };
    struct stat now = {};
    if (fstat(file_.fd(), &now) != 0) return lost(strerror(errno));
    if (now.st_size != opened_.st_size || now.st_mtim.tv_sec != opened_.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec) {
      return lost("was written to since it was opened");
    }
    constexpr size_t kPiece = size_t{1} << 20;
    std::vector<std::byte> scratch(std::min(kPiece, data.size()));
    const auto begin = static_cast<size_t>(data.data() - bytes().data());
    for (size_t at = 0; at < data.size();) {
      const ssize_t read = pread(file_.fd(), scratch.data(), std::min(kPiece, data.size() - at),
                                 static_cast<off_t>(begin + at));
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) return lost(read < 0 ? strerror(errno) : "has become shorter");
      at += static_cast<size_t>(read);
    }
    return absl::OkStatus();
  }

 private:
  void* const base_;
  const size_t size_;
  const std::string path_;
  const RegularFile file_;
  struct stat opened_ = {};
};

SafetensorsFolder::SafetensorsFolder() = default;

// Fills a SafetensorsFolder; holds what only opening needs.
struct SafetensorsReader {
  SafetensorsFolder folder;
  std::vector<std::string> missing;
  std::vector<std::string> damaged;  // With the reason.

  // Maps `path` and adds its tensors under their names to `found`. A file that is missing or
  // damaged is noted, so that one start shows all of them.
  absl::Status Add(const std::filesystem::path& path, TensorMap& found) {
    const std::string name = path.filename().string();
    absl::StatusOr<RegularFile> file = RegularFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      missing.push_back(name);
      return absl::OkStatus();
    }
    LYNX_RETURN_IF_ERROR(file.status());
    if (file->size() == 0) {
      damaged.push_back(absl::StrCat(name, " (empty)"));
      return absl::OkStatus();
    }
    const auto size = static_cast<size_t>(file->size());
    void* base = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->fd(), 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map ", path.string(), ": ", strerror(errno)));
    }
    auto mapping = std::make_shared<const SafetensorsFolder::Mapping>(base, size, path.string(),
                                                                      *std::move(file));
    const std::span<const std::byte> bytes = mapping->bytes();
    folder.mappings_.push_back(std::move(mapping));
    return AddTensors(path.string(), name, bytes, found);
  }

  absl::Status AddTensors(const std::string& file, const std::string& name,
                          std::span<const std::byte> bytes, TensorMap& found) {
    uint64_t header_bytes = 0;
    if (bytes.size() >= kLengthBytes) memcpy(&header_bytes, bytes.data(), kLengthBytes);
    if (bytes.size() < kLengthBytes || header_bytes > kMaxHeaderBytes ||
        bytes[kLengthBytes] != std::byte{'{'}) {
      damaged.push_back(absl::StrCat(name, " (", bytes.size(), " bytes, not a safetensors file)"));
      return absl::OkStatus();
    }
    if (header_bytes > bytes.size() - kLengthBytes) {
      damaged.push_back(absl::StrCat(name, " (ends inside its header)"));
      return absl::OkStatus();
    }
    const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                  header_bytes);
    LYNX_ASSIGN_OR_RETURN(const json document, ParseJson(header, file));
    if (!document.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": the header is not a JSON object"));
    }
    const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
    LYNX_RETURN_IF_ERROR(CheckCount(document.size(), file));
    std::vector<Entry> entries;
    for (const auto& [key, value] : document.items()) {
      if (key == "__metadata__") continue;
      LYNX_ASSIGN_OR_RETURN(Entry entry, ParseEntry(key, value, file));
      entries.push_back(std::move(entry));
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    const Entry* before = nullptr;
    for (const Entry& entry : entries) {
      if (before != nullptr && entry.begin < before->end) {
        return absl::InvalidArgumentError(absl::StrCat(file, ": tensors '", Shortened(before->name),
                                                       "' and '", Shortened(entry.name),
                                                       "' overlap"));
      }
      if (entry.begin > (before == nullptr ? 0 : before->end)) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ": a hole before tensor '", Shortened(entry.name), "'"));
      }
      before = &entry;
    }
    if (before != nullptr && before->end > data.size()) {
      damaged.push_back(absl::StrCat(name, " (", before->end - data.size(), " bytes short)"));
      return absl::OkStatus();
    }
    if (data.size() > (before == nullptr ? 0 : before->end)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", data.size() - (before == nullptr ? 0 : before->end),
                       " bytes after the last tensor"));
    }
    for (Entry& entry : entries) {
      const auto tensor_data = data.subspan(entry.begin, entry.end - entry.begin);
      entry.tensor.file = name;
      entry.tensor.data = Aligned(tensor_data, ElementBytes(entry.tensor));
      found.emplace(std::move(entry.name), std::move(entry.tensor));
    }
    return absl::OkStatus();
  }

  // The format does not promise alignment; element access needs it.
  std::span<const std::byte> Aligned(std::span<const std::byte> data, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(data.data()) % alignment == 0) return data;
    auto copy = std::make_unique<std::byte[]>(data.size());
    std::copy(data.begin(), data.end(), copy.get());
    folder.realigned_.push_back(std::move(copy));
    return {folder.realigned_.back().get(), data.size()};
  }

  absl::Status CheckFiles(const std::filesystem::path& dir) const {
    if (!missing.empty()) {
      return absl::NotFoundError(
          absl::StrCat("weight files missing in ", dir.string(), ": ", NameList(missing),
                       damaged.empty() ? "" : absl::StrCat("; damaged: ", NameList(damaged))));
    }
    if (!damaged.empty()) {
      return absl::DataLossError(
          absl::StrCat("weight files damaged in ", dir.string(), ": ", NameList(damaged)));
    }
    return absl::OkStatus();
  }

  absl::Status AddIndexed(const std::filesystem::path& dir, const std::filesystem::path& index) {
    LYNX_ASSIGN_OR_RETURN(const json document, ReadJsonFile(index, kMaxIndexBytes));
    if (!document.is_object() || !document.contains("weight_map") ||
        !document["weight_map"].is_object() || document["weight_map"].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(index.string(), ": key 'weight_map' must be an object that names tensors"));
    }
    LYNX_RETURN_IF_ERROR(CheckCount(document["weight_map"].size(), index.string()));
    std::map<std::string, std::vector<std::string>> tensors_of;  // By shard.
    for (const auto& [tensor, shard] : document["weight_map"].items()) {
      if (!shard.is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(index.string(), ": the file of tensor '",
                                                       Shortened(tensor), "' is not a string"));
      }
      const std::string name = shard.get<std::string>();
      if (name.empty() || name == "." || name == ".." || absl::StrContains(name, "/") ||
          name.find('\0') != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat(index.string(), ": tensor '", Shortened(tensor),
                         "' names a file outside the folder: '", Shortened(name), "'"));
      }
      tensors_of[name].push_back(tensor);
    }
    std::map<std::string, TensorMap> found;  // By shard.
    for (const auto& [shard, tensors] : tensors_of) {
      LYNX_RETURN_IF_ERROR(Add(dir / shard, found[shard]));
    }
    LYNX_RETURN_IF_ERROR(CheckFiles(dir));
    std::vector<std::string> absent;
    for (const auto& [shard, tensors] : tensors_of) {
      for (const std::string& tensor : tensors) {
        auto node = found[shard].extract(tensor);
        if (node.empty()) {
          absent.push_back(absl::StrCat(tensor, " (in ", shard, ")"));
        } else {
          folder.tensors_.insert(std::move(node));
        }
      }
    }
    if (!absent.empty()) {
      return absl::NotFoundError(
          absl::StrCat(index.string(), " names tensors that are not there: ", NameList(absent)));
    }
    NoteUnusedFiles(dir, tensors_of);
    return absl::OkStatus();
  }

  template <typename Map>
  void NoteUnusedFiles(const std::filesystem::path& dir, const Map& used) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
      const std::string name = entry.path().filename().string();
      const std::string extension = entry.path().extension().string();
      if ((extension == ".safetensors" || extension == ".bin" || extension == ".gguf") &&
          used.count(name) == 0) {
        folder.unused_files_.push_back(name);
      }
    }
    std::sort(folder.unused_files_.begin(), folder.unused_files_.end());
  }
};

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::Open(const std::filesystem::path& model_dir) {
  SafetensorsReader reader;
  std::error_code error;
  const std::filesystem::path index = model_dir / "model.safetensors.index.json";
  if (std::filesystem::exists(std::filesystem::symlink_status(index, error))) {
    LYNX_RETURN_IF_ERROR(reader.AddIndexed(model_dir, index));
  } else {
    LYNX_RETURN_IF_ERROR(reader.Add(model_dir / "model.safetensors", reader.folder.tensors_));
    LYNX_RETURN_IF_ERROR(reader.CheckFiles(model_dir));
    reader.NoteUnusedFiles(model_dir, std::set<std::string>{"model.safetensors"});
  }
  return std::move(reader.folder);
}

void SafetensorsFolder::Release(std::span<const std::byte> data) const {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data.data() + data.size()) / page * page;
  for (const auto& mapping : mappings_) {
    const auto first = reinterpret_cast<uintptr_t>(mapping->bytes().data());
    if (begin >= first && end <= first + mapping->bytes().size() && begin < end) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }
}

absl::Status SafetensorsFolder::CheckReadable(std::span<const std::byte> data) const {
  for (const auto& mapping : mappings_) {
    if (mapping->Holds(data)) return mapping->CheckReadable(data);
  }
  return absl::OkStatus();  // In memory since it was opened.
}

const Tensor* SafetensorsFolder::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace lynx::model
