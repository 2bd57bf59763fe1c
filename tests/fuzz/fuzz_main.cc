// Drives a fuzz target without libFuzzer: mutates the files of a corpus, the same way every time.
//
//   NAME_fuzz [--runs N] [--seed S] [--first R] FOLDER_OR_FILE...
//
// Every file is tried as it is, then N mutations. Says at its death which one it was: with the same
// seed, `--first R --runs 1` repeats run R alone.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Of the sanitizers' run time, when the program is built with it.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

constexpr size_t kMaxBytes = 64 * 1024;

uint64_t seed = 1;
uint64_t run = 0;

void SayRun() { std::cerr << "fuzz: seed " << seed << ", run " << run << std::endl; }

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, uint64_t run_seed)
      : corpus_(corpus), random_(run_seed) {}

  std::string Next() {
    std::string text = Any();
    for (uint64_t left = 1 + Below(8); left > 0; --left) Change(text);
    if (text.size() > kMaxBytes) text.resize(kMaxBytes);
    return text;
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  size_t Place(const std::string& text) { return static_cast<size_t>(Below(text.size() + 1)); }
  const std::string& Any() { return corpus_[static_cast<size_t>(Below(corpus_.size()))]; }
  std::string Piece(const std::string& text) {
    const size_t begin = Place(text);
    return text.substr(begin, static_cast<size_t>(1 + Below(24)));
  }

  void Change(std::string& text) {
    const size_t at = Place(text);
    switch (Below(8)) {
      case 0:
        text.insert(at, 1, static_cast<char>(Below(256)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        break;
      case 2:
        text.erase(at, static_cast<size_t>(1 + Below(8)));
        break;
      case 3:  // Repeats a part, maybe often.
      {
        const std::string piece = Piece(text);
        for (uint64_t times = 1 + Below(Below(20) == 0 ? 2000 : 3); times > 0; --times) {
          text.insert(at, piece);
          if (text.size() > kMaxBytes) break;
        }
      } break;
      case 4:
        text.insert(at, Piece(Any()));
        break;
      case 5: {
        const std::string piece = Piece(Any());
        text.replace(at, std::min(piece.size(), text.size() - at), piece);
        break;
      }
      case 6: {
        static const std::vector<std::string> kOdd = {"-1",
                                                      "0",
                                                      "9223372036854775807",
                                                      "-9223372036854775808",
                                                      "18446744073709551616",
                                                      "1e999",
                                                      "null",
                                                      "true",
                                                      "\"\"",
                                                      "[]",
                                                      "{}",
                                                      "\\u0000",
                                                      "\xF0\x9F\x8E\x89",
                                                      "\xCC\x81",
                                                      "\xE2\x96\x81",
                                                      "\xFF",
                                                      " ",
                                                      "\n"};
        text.insert(at, kOdd[static_cast<size_t>(Below(kOdd.size()))]);
        break;
      }
      default: {  // Another file's end.
        const std::string& other = Any();
        text = text.substr(0, at) + other.substr(Place(other));
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

void AddFile(const std::filesystem::path& path, std::vector<std::string>& corpus) {
  std::ifstream file(path, std::ios::binary);
  corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void Try(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 1000;
  uint64_t first = 0;
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    uint64_t* number = argument == "--runs"    ? &runs
                       : argument == "--seed"  ? &seed
                       : argument == "--first" ? &first
                                               : nullptr;
    if (number != nullptr) {
      if (++i == argc) break;
      *number = std::strtoull(argv[i], nullptr, 10);
    } else if (std::filesystem::is_directory(argument)) {
      std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(argument), {});
      std::sort(files.begin(), files.end());
      for (const auto& file : files) AddFile(file, corpus);
    } else {
      AddFile(argument, corpus);
    }
  }
  if (corpus.empty()) {
    std::cerr << "usage: " << argv[0] << " [--runs N] [--seed S] [--first R] FOLDER_OR_FILE...\n";
    return 2;
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SayRun);
  } else {
    std::signal(SIGABRT, [](int) { SayRun(); });  // As a failed LYNX_CHECK raises it.
  }
  if (first == 0) {
    for (const std::string& text : corpus) Try(text);
  }
  for (run = first; run < first + runs; ++run) {
    std::seed_seq mixed{seed, run};
    std::vector<uint32_t> words(2);
    mixed.generate(words.begin(), words.end());
    Try(Mutator(corpus, (uint64_t{words[0]} << 32) | words[1]).Next());
  }
  std::cout << corpus.size() << " files, " << runs << " mutations, seed " << seed << "\n";
  return 0;
}
