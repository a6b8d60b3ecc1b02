// The secret that the processes of a job share, so that nobody else can connect to them.
#pragma once

#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::ofi {

// That of VERBENA_JOB_SECRET_FILE or VERBENA_JOB_SECRET, as for `verbena bench --job`. With
// neither, one of this user, from ~/.verbena/secret, which is made if it is not there: libfabric's
// programs have no way to hand one over.
Result<JobSecret> find_secret();

}  // namespace verbena::ofi
