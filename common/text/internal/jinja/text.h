#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/text_range.h"

namespace lynx::text::jinja {

// A string that knows which of its bytes a request gave, and which the template wrote: what a
// request gave must not be read as control tokens.
class Text {
 public:
  Text() = default;
  // The template's own.
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
  static Text Given(std::string bytes) {
    Text text(std::move(bytes));
    if (!text.bytes_.empty()) text.given_.push_back({0, text.bytes_.size()});
    return text;
  }
  // What came of rewriting `source` in a way that keeps no places: given if any of that was.
  static Text From(const Text& source, std::string bytes) {
    return source.given_.empty() ? Text(std::move(bytes)) : Given(std::move(bytes));
  }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  // In order and apart.
  std::span<const TextRange> given() const { return given_; }

  void Append(std::string_view own) { bytes_ += own; }
  void AppendGiven(std::string_view bytes) {
    AddRange(bytes_.size(), bytes_.size() + bytes.size());
    bytes_ += bytes;
  }
  void Append(const Text& other) { AppendPart(other, 0, other.size()); }
  // Bytes [begin, end) of `other`, which is another object.
  void AppendPart(const Text& other, size_t begin, size_t end) {
    auto range = std::partition_point(other.given_.begin(), other.given_.end(),
                                      [begin](const TextRange& one) { return one.end <= begin; });
    for (; range != other.given_.end() && range->begin < end; ++range) {
      AddRange(bytes_.size() + std::max(range->begin, begin) - begin,
               bytes_.size() + std::min(range->end, end) - begin);
    }
    bytes_.append(other.bytes_, begin, end - begin);
  }
  Text Part(size_t begin, size_t end) const {
    Text part;
    part.AppendPart(*this, begin, end);
    return part;
  }
  // The part that `view`, a view of bytes(), covers.
  Text Part(std::string_view view) const {
    if (view.empty()) return Text();
    const auto begin = static_cast<size_t>(view.data() - bytes_.data());
    return Part(begin, begin + view.size());
  }

 private:
  void AddRange(size_t begin, size_t end) {
    if (begin == end) return;
    if (!given_.empty() && given_.back().end == begin) {
      given_.back().end = end;
    } else {
      given_.push_back({begin, end});
    }
  }

  std::string bytes_;
  std::vector<TextRange> given_;
};

}  // namespace lynx::text::jinja
