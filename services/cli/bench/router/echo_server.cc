#include "services/cli/bench/router/echo_server.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/announcement.h"
#include "common/config/flag_set.h"
#include "services/cli/bench/run_mode.h"

namespace lynx::cli {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

class Echo : public std::enable_shared_from_this<Echo> {
 public:
  explicit Echo(tcp::socket socket) : socket_(std::move(socket)) {}

  void Read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](const error_code& error, size_t bytes) {
                              if (!error) self->Write(bytes);
                            });
  }

 private:
  void Write(size_t bytes) {
    asio::async_write(socket_, asio::buffer(buffer_, bytes),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (!error) self->Read();
                      });
  }

  tcp::socket socket_;
  std::array<char, 4096> buffer_;
};

void Accept(tcp::acceptor& acceptor) {
  acceptor.async_accept([&acceptor](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::make_shared<Echo>(std::move(socket))->Read();
    }
    Accept(acceptor);
  });
}

absl::Status Serve(const std::string& announce) {
  try {
    asio::io_context io(1);
    tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    asio::signal_set stop(io, SIGTERM);
    stop.async_wait([&](const error_code&, int) { io.stop(); });
    Accept(acceptor);
    const absl::Status announced = WriteAnnouncement(
        announce,
        {.http = absl::StrCat("127.0.0.1:", acceptor.local_endpoint().port()), .control = ""});
    if (announced.ok()) io.run();
    return announced;
  } catch (const boost::system::system_error& error) {
    return absl::UnavailableError(error.what());
  }
}

}  // namespace

int RunEchoServer(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  std::string mode;
  std::string announce;
  config::FlagSet flags("lynx bench echo-server", "What lynx bench router compares with.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &mode, "echo-server");
  flags.AddString("announce", &announce, "File to write the address to");
  return RunMode(flags, argc, argv, err, [&] { return Serve(announce); });
}

}  // namespace lynx::cli
