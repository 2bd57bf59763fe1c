#include "services/cli/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::cli {
namespace {

static_assert(std::endian::native == std::endian::little);

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("npy: ", what));
}

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// The header's dictionary, a Python literal:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 64), }
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : rest_(text) {}

  absl::StatusOr<Header> Read() {
    Header header;
    int keys = 0;
    if (!Skip('{')) return Malformed();
    while (!Skip('}')) {
      std::string key;
      if (!ReadQuoted(key) || !Skip(':')) return Malformed();
      if (key == "descr") {
        if (!ReadQuoted(header.descr)) {
          return Wrong("the elements are structures; wanted float32");
        }
        keys |= 1;
      } else if (key == "fortran_order") {
        const std::string_view word = Word();
        if (word != "True" && word != "False") return Malformed();
        header.fortran_order = word == "True";
        keys |= 2;
      } else if (key == "shape") {
        if (!ReadShape(header.shape)) return Malformed();
        keys |= 4;
      } else {
        return Malformed();
      }
      if (!Skip(',') && !Peek('}')) return Malformed();
    }
    Space();
    if (!rest_.empty() || keys != 7) return Malformed();
    return header;
  }

 private:
  static absl::Status Malformed() { return Wrong("the header is malformed"); }

  void Space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\t"), rest_.size())); }
  bool Peek(char c) {
    Space();
    return !rest_.empty() && rest_.front() == c;
  }
  bool Skip(char c) {
    if (!Peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool ReadQuoted(std::string& text) {
    const char quote = Peek('"') ? '"' : '\'';
    if (!Skip(quote)) return false;
    const size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return false;
    text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return true;
  }
  std::string_view Word() {
    Space();
    const size_t end = std::min(rest_.find_first_of(",} "), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }
  bool ReadShape(std::vector<uint64_t>& shape) {
    shape.clear();
    if (!Skip('(')) return false;
    while (!Skip(')')) {
      uint64_t size = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc()) return false;
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      shape.push_back(size);
      if (!Skip(',') && !Peek(')')) return false;
      Space();
    }
    return true;
  }

  std::string_view rest_;
};

}  // namespace

absl::StatusOr<FloatMatrix> ParseNpy(std::string_view bytes) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr size_t kVersionEnd = 8;
  if (bytes.substr(0, kMagic.size()) != kMagic) return Wrong("not a .npy file: no NumPy magic");
  if (bytes.size() < kVersionEnd) return Wrong("truncated in the header");
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  const uint32_t major = byte(6);
  if (major < 1 || major > 3) {
    return Wrong(absl::StrCat("version ", major, ".", byte(7), " is unknown; wanted 1 to 3"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (bytes.size() < kVersionEnd + length_bytes) return Wrong("truncated in the header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= static_cast<size_t>(byte(kVersionEnd + i)) << (8 * i);
  }
  bytes.remove_prefix(kVersionEnd + length_bytes);
  if (bytes.size() < length) return Wrong("truncated in the header");

  LYNX_ASSIGN_OR_RETURN(const Header header, HeaderReader(bytes.substr(0, length)).Read());
  bytes.remove_prefix(length);
  if (header.descr != "<f4") {
    return Wrong(absl::StrCat("the elements are '", absl::CHexEscape(header.descr.substr(0, 20)),
                              "'; wanted little-endian float32, '<f4'"));
  }
  if (header.fortran_order) return Wrong("the array is in Fortran order; wanted C order");
  if (header.shape.size() != 2) {
    return Wrong(absl::StrCat("the array has ", header.shape.size(),
                              " dimensions; wanted two, [rows, experts]"));
  }
  const uint64_t rows = header.shape[0];
  const uint64_t columns = header.shape[1];
  if (columns == 0) return Wrong("the rows are empty");
  const uint64_t held = bytes.size() / sizeof(float);
  if (rows > held / columns || bytes.size() != rows * columns * sizeof(float)) {
    return Wrong(absl::StrCat("the data has ", bytes.size(),
                              " bytes, which is not what the shape (", rows, ", ", columns,
                              ") takes"));
  }
  FloatMatrix matrix{.rows = rows, .columns = columns, .values = {}};
  matrix.values.resize(rows * columns);
  if (!matrix.values.empty()) std::memcpy(matrix.values.data(), bytes.data(), bytes.size());
  return matrix;
}

}  // namespace lynx::cli
