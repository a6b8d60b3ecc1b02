// The software RNIC of programs that link its objects instead of loading libverbena.so: tests of
// its inside. In libverbena.so itself nobody calls this.
#include "src/device/soft/soft_rnic.h"
#include "src/device/soft_library.h"

namespace verbena {

Result<const soft::SoftRnic*> load_soft_rnic() { return verbena_soft_rnic(soft::kSoftRnicVersion); }

}  // namespace verbena
