#include "tests/support/earlier/earlier_protocol.h"

#include <string>

#include "common/base/check.h"
#include "tests/support/earlier/control.pb.h"

namespace lynx::testing {

bool ThroughEarlierProtocol(proto::Envelope& envelope) {
  earlier::Envelope earlier;
  std::string bytes = envelope.SerializeAsString();
  LYNX_CHECK(earlier.ParseFromString(bytes));
  earlier.DiscardUnknownFields();
  bytes = earlier.SerializeAsString();
  LYNX_CHECK(envelope.ParseFromString(bytes));
  return envelope.body_case() != proto::Envelope::BODY_NOT_SET;
}

}  // namespace lynx::testing
