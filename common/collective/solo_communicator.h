#pragma once

#include "common/collective/exchange_communicator.h"

namespace lynx::collective {

// A group of one rank.
class SoloCommunicator final : public ExchangeCommunicator {
 public:
  SoloCommunicator() : ExchangeCommunicator(0, 1) {}

 private:
  absl::Status Exchange(std::span<const std::byte>, std::span<const Part>, std::span<std::byte>,
                        std::span<const Part>) override {
    return absl::OkStatus();  // There is nobody else.
  }
  void Interrupt() override {}
};

}  // namespace lynx::collective
