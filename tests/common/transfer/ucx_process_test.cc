// UCX towards a peer in another process that is killed or frozen in mid-transfer: this side must
// neither crash nor hang nor hold anything for it.
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/concurrency/event_loop.h"
#include "common/transfer/ucx_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/transfer_endpoint.h"

namespace lynx::transfer {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::TransferEndpoint;
using ::testing::ElementsAre;
using ::testing::SizeIs;

std::unique_ptr<TransferEndpoint> NewEndpoint(ThreadEventLoop& loop) {
  return std::make_unique<TransferEndpoint>(
      loop, [](EventLoop& on) { return UcxEngine::Create({.net_devices = "lo"}, on).value(); });
}

// The other process: prints its address, takes everything, answers "flood" by large messages to no
// end.
int RunPeer() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ThreadEventLoop loop;
  auto end = NewEndpoint(loop);
  std::printf("address %s\n", absl::BytesToHexString(end->address()).c_str());
  std::fflush(stdout);
  const std::vector<std::byte> payload(4 << 20, std::byte{0x5a});
  for (;;) {
    for (const auto& message : end->WaitForMessages(1)) {
      if (message.header != "flood") continue;
      for (;;) {
        for (int i = 0; i < 8; ++i) end->Send(message.peer, "water", {payload});
        end->WaitForSends();
      }
    }
  }
}

class Peer {
 public:
  Peer() {
    int out[2];
    LYNX_CHECK(pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string self = "/proc/self/exe";
    std::string mode = "--peer";
    char* argv[] = {self.data(), mode.data(), nullptr};
    LYNX_CHECK(posix_spawn(&pid_, self.c_str(), &actions, nullptr, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* stream = fdopen(out[0], "r");
    // UCX writes its warnings to the same stream.
    char line[4096];
    while (address_.empty() && std::fgets(line, sizeof(line), stream) != nullptr) {
      std::string_view text(line);
      if (!text.starts_with("address ")) continue;
      text = text.substr(8, text.size() - 9);
      address_ = absl::HexStringToBytes(absl::string_view(text.data(), text.size()));
    }
    std::fclose(stream);
    LYNX_CHECK_MSG(!address_.empty(), "the peer did not start");
  }
  ~Peer() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& address() const { return address_; }
  void Signal(int signal) { kill(pid_, signal); }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

TEST(UcxProcessTest, AKilledReceiverEndsTheSendsAndIsReported) {
  ThreadEventLoop loop;
  auto end = NewEndpoint(loop);
  const std::vector<std::byte> payload(16 << 20, std::byte{0x11});
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    Peer peer;
    const PeerId id = end->ConnectTo(peer.address());
    ASSERT_THAT(end->SendAndWait(id, "hello", {payload}), IsOk());
    for (int i = 0; i < 20; ++i) end->Send(id, "bulk", {payload});
    peer.Signal(SIGKILL);
    EXPECT_THAT(end->WaitForDown(1), ElementsAre(id));
    EXPECT_THAT(end->send_results(), SizeIs(20));
    EXPECT_FALSE(end->SendAndWait(id, "more", {payload}).ok());
  }
}

TEST(UcxProcessTest, AKilledSenderGivesItsLandingsBackAndIsReported) {
  ThreadEventLoop loop;
  auto end = NewEndpoint(loop);
  Peer peer;
  const PeerId id = end->ConnectTo(peer.address());
  ASSERT_THAT(end->SendAndWait(id, "flood", {}), IsOk());
  ASSERT_THAT(end->WaitForMessages(3), SizeIs(3));
  peer.Signal(SIGKILL);
  EXPECT_THAT(end->WaitForDown(1), ElementsAre(id));
  EXPECT_EQ(end->WaitForNoLandings(), 0);
}

TEST(UcxProcessTest, AFrozenReceiverIsClosedByForceAndLetsGoOfThePayload) {
  ThreadEventLoop loop;
  for (const bool resume : {false, true}) {
    SCOPED_TRACE(resume);
    auto end = NewEndpoint(loop);
    const std::vector<std::byte> payload(16 << 20, std::byte{0x11});
    Peer peer;
    const PeerId id = end->ConnectTo(peer.address());
    ASSERT_THAT(end->SendAndWait(id, "hello", {payload}), IsOk());
    for (int i = 0; i < 8; ++i) end->Send(id, "bulk", {payload});
    peer.Signal(SIGSTOP);
    end->Close(id);
    EXPECT_THAT(end->send_results(), SizeIs(8))
        << "sends to a frozen peer outlive their connection";
    if (resume) {
      peer.Signal(SIGCONT);
      const PeerId again = end->ConnectTo(peer.address());
      EXPECT_THAT(end->SendAndWait(again, "again", {payload}), IsOk());
    }
    end.reset();  // Also with the peer frozen.
  }
}

TEST(UcxProcessTest, NothingOfAFrozenSenderLandsAfterClose) {
  ThreadEventLoop loop;
  auto end = NewEndpoint(loop);
  Peer peer;
  const PeerId id = end->ConnectTo(peer.address());
  ASSERT_THAT(end->SendAndWait(id, "flood", {}), IsOk());
  ASSERT_THAT(end->WaitForMessages(3), SizeIs(3));
  peer.Signal(SIGSTOP);
  end->Close(id);
  EXPECT_EQ(end->WaitForNoLandings(), 0);
  end->TakeMessages();  // Those that were complete.
  peer.Signal(SIGCONT);
  // The peer is alive and its bytes arrive, but no longer at the receiver.
  const PeerId again = end->ConnectTo(peer.address());
  EXPECT_THAT(end->SendAndWait(again, "hello", {}), IsOk());
  EXPECT_THAT(end->TakeMessages(), SizeIs(0));
}

}  // namespace
}  // namespace lynx::transfer

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--peer") return lynx::transfer::RunPeer();
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
