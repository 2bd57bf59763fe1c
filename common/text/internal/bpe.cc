#include "common/text/internal/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace lynx::text::internal {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// A possible merge of the symbol at `position` with its right neighbour. Lower rank first, then
// leftmost.
struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t id;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Bpe::Create(const Json& model, std::string_view place) {
  auto bpe = std::unique_ptr<Bpe>(new Bpe());
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = FindField(model, affix);
    if (value != nullptr && *value != "") {
      return BadJson(place, std::string("'") + affix + "' is not supported");
    }
  }
  const Json* dropout = FindField(model, "dropout");
  if (dropout != nullptr && *dropout != 0) return BadJson(place, "'dropout' is not supported");
  LYNX_ASSIGN_OR_RETURN(bpe->byte_fallback_, BoolField(model, "byte_fallback", false, place));
  LYNX_ASSIGN_OR_RETURN(bpe->fuse_unknown_, BoolField(model, "fuse_unk", false, place));
  LYNX_ASSIGN_OR_RETURN(bpe->ignore_merges_, BoolField(model, "ignore_merges", false, place));

  const Json* vocab = FindField(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return BadJson(place, "'vocab' must be an object");
  bpe->vocab_.reserve(vocab->size());
  for (const auto& [token, id] : vocab->items()) {
    LYNX_ASSIGN_OR_RETURN(bpe->vocab_[token],
                          ToTokenId(id, absl::StrCat(ToAbsl(place), ".vocab['", token, "']")));
  }
  if (FindField(model, "unk_token") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(const std::string unknown, StringField(model, "unk_token", place));
    bpe->unknown_id_ = bpe->Find(unknown);
    if (bpe->unknown_id_ < 0) {
      return BadJson(place, "unk_token '" + unknown + "' is not in the vocabulary");
    }
  }
  bpe->char_ids_.fill(-1);
  for (const auto& [token, id] : bpe->vocab_) {
    if (token.empty() || token.size() > 2 || Utf8SequenceLength(token) != token.size()) continue;
    const auto first = static_cast<uint8_t>(token[0]);
    const size_t code_point =
        token.size() == 1 ? first
                          : (size_t{first & 0x1Fu} << 6) | (static_cast<uint8_t>(token[1]) & 0x3Fu);
    bpe->char_ids_[code_point] = id;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    bpe->byte_ids_[byte] = bpe->Find(absl::StrFormat("<0x%02X>", byte));
  }
  const Json* merges = FindField(model, "merges");
  if (merges == nullptr || !merges->is_array()) return BadJson(place, "'merges' must be an array");
  LYNX_RETURN_IF_ERROR(bpe->ReadMerges(*merges, place));
  return bpe;
}

absl::Status Bpe::ReadMerges(const Json& merges, std::string_view place) {
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto here = [&] { return absl::StrCat(ToAbsl(place), ".merges[", i, "]"); };
    const Json& merge = merges[i];
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view line = merge.get_ref<const std::string&>();
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return BadJson(here(), "must be two tokens with one space between");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      return BadJson(here(), "must be a string or a pair of strings");
    }
    const std::string joined = absl::StrCat(ToAbsl(left), ToAbsl(right));
    const int32_t left_id = Find(left);
    const int32_t right_id = Find(right);
    const int32_t joined_id = Find(joined);
    if (left_id < 0 || right_id < 0 || joined_id < 0) {
      return BadJson(here(), "'" +
                                 std::string(left_id < 0    ? left
                                             : right_id < 0 ? right
                                                            : std::string_view(joined)) +
                                 "' is not in the vocabulary");
    }
    const uint64_t key =
        (uint64_t{static_cast<uint32_t>(left_id)} << 32) | static_cast<uint32_t>(right_id);
    merges_[key] = {static_cast<int32_t>(i), joined_id};
  }
  return absl::OkStatus();
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it =
      merges_.find((uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const int32_t id = Find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  cache_.Append(word, ids, [this](std::string_view text, std::vector<int32_t>& out) {
    MergeSymbols(Symbols(text), out);
  });
}

std::vector<int32_t> Bpe::Symbols(std::string_view word) const {
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  bool unknown_pending = false;
  const auto flush_unknown = [&] {
    if (unknown_pending) symbols.push_back(unknown_id_);
    unknown_pending = false;
  };
  while (!word.empty()) {
    const auto first = static_cast<uint8_t>(word[0]);
    const size_t length = std::max<size_t>(1, Utf8SequenceLength(word));
    const std::string_view character = word.substr(0, length);
    word.remove_prefix(length);
    int32_t id = -1;
    if (length == 1) {
      id = char_ids_[first & 0x7F];
    } else if (length == 2) {
      id = char_ids_[(size_t{first & 0x1Fu} << 6) | (static_cast<uint8_t>(character[1]) & 0x3Fu)];
    } else {
      id = Find(character);
    }
    if (id >= 0) {
      flush_unknown();
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_ && std::all_of(character.begin(), character.end(), [this](char c) {
          return byte_ids_[static_cast<uint8_t>(c)] >= 0;
        })) {
      for (const char c : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      continue;
    }
    // As the reference does, a character that has no token and no unknown token to stand for it
    // leaves nothing behind.
    if (unknown_id_ < 0) continue;
    if (!fuse_unknown_) flush_unknown();
    unknown_pending = true;
  }
  flush_unknown();
  return symbols;
}

void Bpe::MergeSymbols(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  struct Node {
    int32_t id;  // -1: merged into its left neighbour.
    int32_t previous;
    int32_t next;  // -1: none.
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Node> nodes(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    nodes[static_cast<size_t>(i)] = {symbols[static_cast<size_t>(i)], i - 1,
                                     i + 1 < count ? i + 1 : -1};
  }
  const auto node = [&nodes](int32_t position) -> Node& {
    return nodes[static_cast<size_t>(position)];
  };

  std::vector<Candidate> initial;
  initial.reserve(symbols.size());
  const auto candidate = [&](int32_t position, auto&& push) {
    const Node& left = node(position);
    if (left.next < 0) return;
    const Merge* merge = FindMerge(left.id, node(left.next).id);
    if (merge != nullptr) push(Candidate{merge->rank, position, merge->id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) {
    candidate(i, [&](Candidate c) { initial.push_back(c); });
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(initial));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Node& left = node(top.position);
    if (left.id < 0 || left.next < 0) continue;
    Node& right = node(left.next);
    // A stale entry: one of its parts has changed since. Compared by result, as the reference does.
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) node(left.next).previous = top.position;
    const auto push = [&](Candidate c) { queue.push(c); };
    if (left.previous >= 0) candidate(left.previous, push);
    candidate(top.position, push);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = node(i).next) ids.push_back(node(i).id);
}

}  // namespace lynx::text::internal
