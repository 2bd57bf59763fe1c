// Times encoding, for compare.py.
//
//   tokenizer_bench MODEL_DIR TEXTS ROUNDS
//
// TEXTS is a JSON array of strings. Prints {"seconds", "tokens"}: the fastest round over all texts,
// on one thread.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: tokenizer_bench MODEL_DIR TEXTS ROUNDS\n";
    return 2;
  }
  const auto tokenizer = lynx::text::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  std::ifstream file(argv[2]);
  const auto texts = nlohmann::json::parse(file).get<std::vector<std::string>>();
  double seconds = std::numeric_limits<double>::max();
  size_t tokens = 0;
  for (int round = 0; round < std::atoi(argv[3]); ++round) {
    tokens = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& text : texts) {
      const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/false);
      if (!ids.ok()) {
        std::cerr << ids.status() << "\n";
        return 1;
      }
      tokens += ids->size();
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    seconds = std::min(seconds, spent.count());
  }
  std::cout << nlohmann::json{{"seconds", seconds}, {"tokens", tokens}}.dump() << "\n";
  return 0;
}
