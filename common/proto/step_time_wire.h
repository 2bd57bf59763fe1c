#pragma once

#include "common/base/step_time.h"
#include "common/proto/control.pb.h"

namespace lynx {

void StepTimeToWire(const StepTime& time, proto::StepTime& wire);

// What a node tells may be anything: what is not a time of at most an hour counts as not measured.
StepTime StepTimeFromWire(const proto::StepTime& wire);

}  // namespace lynx
